"""Chapter TRAIN: models whose parameters are trained by several processes."""

from sharedtensor_conformance.adapter import Layout
from sharedtensor_conformance.chapters.shared_steps import (
    check_private_memory,
    check_shared_memory,
    judging,
)
from sharedtensor_conformance.harness import check, clause

LAYER = {"weight": [1, 2, 3], "bias": [4, 5]}
BUFFERS = {"mean": [21, 22], "variance": [23, 24, 25]}


def values_of(tensors):
    """Return the values of tensors, by the names of the tensors."""
    return {name: tensor.values() for name, tensor in tensors.items()}


def make_with_buffers(actor):
    """Return a module with parameters and buffers."""
    module = actor.make_module(LAYER)
    for name, values in BUFFERS.items():
        actor.add_buffer(module, name, values, True)
    return module


@clause("TRAIN-1")
def test_module_arrives_with_its_parameters_shared(sender, receiver, channel):
    """The sender sends a module; both sides write to each of its parameters."""
    module = sender.make_module(LAYER)
    arrived = sender.send(module, receiver, channel)
    ours, theirs = sender.parameters(module), receiver.parameters(arrived)
    check.equal(values_of(theirs), LAYER, "the names and values are the sender's")
    for name in LAYER:
        check_shared_memory(ours[name], theirs[name])


@clause("TRAIN-1")
def test_module_sent_to_two_processes_is_shared_by_all(sender, receiver, bystander):
    """The sender sends one module to both others; all three write to it."""
    module = sender.make_module({"weight": [6, 7, 8, 9]})
    weights = [sender.parameters(module)["weight"]]
    for to in (receiver, bystander):
        weights.append(to.parameters(sender.send(module, to))["weight"])
    check_shared_memory(*weights)


@clause("TRAIN-2")
def test_state_dict_arrives_with_its_tensors_shared(sender, receiver, channel):
    """The sender sends a state_dict; both sides write, and the module reads it."""
    module = sender.make_module(LAYER)
    arrived = sender.send(sender.state_dict(module), receiver, channel)
    check.equal(values_of(arrived), LAYER, "the names and values are the sender's")
    parameters = sender.parameters(module)
    for name in LAYER:
        check_shared_memory(arrived[name], parameters[name])


@clause("TRAIN-2")
def test_state_dict_and_module_are_one_memory_in_the_receiver(sender, receiver):
    """The sender sends a module and its state_dict; the receiver writes to both."""
    module = sender.make_module({"weight": [10, 11, 12]})
    state = sender.send(sender.state_dict(module), receiver)
    received = receiver.parameters(sender.send(module, receiver))["weight"]
    own = sender.parameters(module)["weight"]
    check_shared_memory(received, state["weight"], own)


TRANSPOSED = Layout("transposed", 0, (2, 3), (1, 2))
"""The transpose of a matrix of three rows and two columns."""


@clause("TRAIN-2", profiles=("views",), views=("transposed",))
def test_parameter_that_is_a_view_is_shared_in_a_state_dict(sender, receiver, channel):
    """The sender sends the state_dict of a module whose weight is a transpose."""
    module = sender.make_module({"bias": [4, 5]})
    base = sender.make([1, 2, 3, 4, 5, 6])
    sender.add_parameter(module, "weight", sender.view(base, TRANSPOSED))
    arrived = sender.send(sender.state_dict(module), receiver, channel)["weight"]
    check.equal(arrived.values(), [1, 3, 5, 2, 4, 6], "it has its values")
    own = sender.parameters(module)["weight"]
    for writer, reader, value in ((arrived, own, 31), (own, arrived, 32)):
        writer.write((1, 0), value)
        check.equal(reader.read((1, 0)), value, "both are one memory")
    check.equal(base.read(1), 32, "which is that of the base")


def replace_members(actor, module):
    """Replace a parameter and a buffer of a module; return its values by name."""
    actor.tie(module, "weight", "bias")
    actor.add_buffer(module, "mean", [26, 27, 28], True)
    changed = {"bias": LAYER["weight"], "mean": [26, 27, 28]}
    return LAYER | BUFFERS | changed


@clause("TRAIN-2", "TRAIN-5")
def test_state_dict_has_what_the_module_has_at_each_send(sender, receiver):
    """The sender sends a state_dict, replaces tensors of the module, and sends again.

    The module has as many parameters and buffers as before, under the same names.
    """
    module = make_with_buffers(sender)
    arrived = sender.send(sender.state_dict(module), receiver)
    check.equal(values_of(arrived), LAYER | BUFFERS, "all are there")
    expected = replace_members(sender, module)
    again = sender.send(sender.state_dict(module), receiver)
    check.equal(values_of(again), expected, "those that were replaced are there")
    own = sender.parameters(module) | sender.buffers(module)
    for name in expected:
        check_shared_memory(again[name], own[name])
    check.equal(arrived["bias"].values(), LAYER["bias"], "the old one is as it was")


@clause("TRAIN-1", "TRAIN-5")
def test_module_arrives_with_what_it_has_at_each_send(sender, receiver):
    """The sender sends a module, replaces tensors of it, and sends it again."""
    module = make_with_buffers(sender)
    first = sender.send(module, receiver)
    expected = replace_members(sender, module)
    second = sender.send(module, receiver)
    arrived = receiver.parameters(second) | receiver.buffers(second)
    check.equal(values_of(arrived), expected, "those that were replaced are there")
    own = sender.parameters(module) | sender.buffers(module)
    for name in expected:
        check_shared_memory(arrived[name], own[name])
    kept = receiver.parameters(first)["bias"]
    check.equal(kept.values(), LAYER["bias"], "the first one is as it was")


@clause("TRAIN-3", profiles=("grad",))
def test_parameter_arrives_as_a_parameter(sender, receiver, channel):
    """The sender sends one parameter that requires grad and one that does not."""
    parameters = sender.parameters(sender.make_module(LAYER))
    parameters["bias"].set_requires_grad(False)
    for name, flag in (("weight", True), ("bias", False)):
        arrived = sender.send(parameters[name], receiver, channel)
        check.equal(arrived.is_parameter(), True, "it is a parameter")
        check.equal(arrived.requires_grad(), flag, "its flag is the sender's")
        check.equal(arrived.is_leaf(), True, "it is a leaf")
        check.equal(arrived.values(), LAYER[name], "it has its values")


@clause("TRAIN-3", profiles=("grad",))
def test_parameters_of_a_module_arrive_as_parameters(sender, receiver):
    """The sender sends a module and a tensor that is no parameter beside it."""
    module = sender.make_module(LAYER)
    sender.parameters(module)["weight"].set_requires_grad(False)
    plain = sender.make([13, 14])
    arrived, beside = sender.send([module, plain], receiver)
    for name, flag in (("weight", False), ("bias", True)):
        parameter = receiver.parameters(arrived)[name]
        check.equal(parameter.is_parameter(), True, "it is a parameter")
        check.equal(parameter.requires_grad(), flag, "its flag is the sender's")
        check.equal(parameter.is_leaf(), True, "it is a leaf")
    check.equal(beside.is_parameter(), False, "the plain tensor is none")


@clause("TRAIN-4", start_methods=("fork",), vary=("strategy", "start_method"))
def test_module_shared_before_a_fork_trains_in_the_child(owner):
    """The owner shares a module and forks; the child writes to its parameters."""
    module = owner.make_module(LAYER)
    owner.share_module(module)
    child = owner.start_peer(arguments=module)
    trained = child.parameters(child.arguments)
    trained["weight"].write(2, 30)
    trained["bias"].write(0, 40)
    found = values_of(owner.parameters(module))
    expected = {"weight": [1, 2, 30], "bias": [40, 5]}
    check.equal(found, expected, "the owner reads the writes of the child")


@clause("TRAIN-4", start_methods=("fork",), vary=("strategy", "start_method"))
def test_two_children_train_one_module(owner):
    """The owner shares a module and forks twice; the children write in turn."""
    module = owner.make_module({"weight": [15, 16, 17]})
    owner.share_module(module)
    children = [owner.start_peer(arguments=module) for _ in range(2)]
    weights = [child.parameters(child.arguments)["weight"] for child in children]
    check_shared_memory(*weights, owner.parameters(module)["weight"])


@clause(
    "TRAIN-4",
    profiles=("grad",),
    start_methods=("fork",),
    vary=("strategy", "start_method"),
)
def test_frozen_parameter_of_a_shared_module_is_shared(owner):
    """The owner freezes one parameter, shares and forks; the child writes to both."""
    module = owner.make_module(LAYER)
    owner.parameters(module)["bias"].set_requires_grad(False)
    owner.share_module(module)
    child = owner.start_peer(arguments=module)
    theirs, own = child.parameters(child.arguments), owner.parameters(module)
    for name in LAYER:
        check_shared_memory(theirs[name], own[name])


@clause("TRAIN-5")
def test_module_arrives_with_its_buffers_shared(sender, receiver, channel):
    """The sender sends a module; both sides write to each of its buffers."""
    module = make_with_buffers(sender)
    arrived = sender.send(module, receiver, channel)
    ours, theirs = sender.buffers(module), receiver.buffers(arrived)
    check.equal(values_of(theirs), BUFFERS, "the names and values are the sender's")
    for name in BUFFERS:
        check.equal(theirs[name].is_parameter(), False, "it is no parameter")
        check_shared_memory(ours[name], theirs[name])
    found = values_of(receiver.parameters(arrived))
    check.equal(found, LAYER, "the parameters are as they were")


@clause("TRAIN-5")
def test_buffers_in_a_state_dict_arrive_shared(sender, receiver, channel):
    """The sender sends a state_dict; both sides write, and the module reads it."""
    module = make_with_buffers(sender)
    arrived = sender.send(sender.state_dict(module), receiver, channel)
    check.equal(values_of(arrived), LAYER | BUFFERS, "names and values are all there")
    ours = sender.buffers(module)
    for name in BUFFERS:
        check_shared_memory(arrived[name], ours[name])


@clause("TRAIN-6", profiles=("share",))
def test_buffers_are_shared_in_place(owner, peer):
    """Owner and peer take the buffers of a module, share it, and take them again."""
    for actor in (owner, peer):
        module = make_with_buffers(actor)
        before = actor.buffers(module)
        shared = [tensor.is_shared() for tensor in before.values()]
        check.equal(shared, [False, False], "they are not shared yet")
        actor.share_module(module)
        after = actor.buffers(module)
        check.equal(values_of(after), BUFFERS, "they have their values")
        for name in BUFFERS:
            check.equal(after[name].is_shared(), True, "each is shared")
            check(after[name].same_object_as(before[name]), "and is the same object")


@clause("TRAIN-6", start_methods=("fork",), vary=("strategy", "start_method"))
def test_buffers_of_a_module_shared_before_a_fork_are_shared(owner):
    """The owner shares a module and forks; child and owner write to its buffers.

    One of the buffers is not in its state_dict.
    """
    module = make_with_buffers(owner)
    owner.add_buffer(module, "unsaved", [26, 27], False)
    check.equal(sorted(owner.state_dict(module)), sorted(LAYER | BUFFERS), "its names")
    owner.share_module(module)
    child = owner.start_peer(arguments=module)
    ours, theirs = owner.buffers(module), child.buffers(child.arguments)
    expected = BUFFERS | {"unsaved": [26, 27]}
    check.equal(values_of(theirs), expected, "the names and values are the owner's")
    for name in expected:
        check_shared_memory(theirs[name], ours[name])


def members_of(actor, module):
    """Return the parameters and buffers of a module by name."""
    return actor.parameters(module) | actor.buffers(module)


@clause(
    "TRAIN-4",
    "TRAIN-6",
    profiles=("share",),
    start_methods=("fork",),
    vary=("strategy", "start_method"),
)
def test_module_that_is_shared_again_shares_what_is_new(owner):
    """The owner shares a module, replaces tensors and adds some, and shares it again.

    A child that is forked then writes to all of them, and so does one forked before.
    """
    module = make_with_buffers(owner)
    owner.share_module(module)
    first = owner.start_peer(arguments=module)
    before = members_of(owner, module)
    replace_members(owner, module)
    owner.add_buffer(module, "count", [29.0], True)
    owner.share_module(module)
    second = owner.start_peer(arguments=module)
    now = members_of(owner, module)
    for name, tensor in now.items():
        check.equal(tensor.is_shared(), True, f"{name} is shared")
    theirs = members_of(second, second.arguments)
    check.equal(sorted(theirs), sorted(now), "the later child has all of them")
    for name, tensor in now.items():
        check_shared_memory(tensor, theirs[name])
    for name, tensor in members_of(first, first.arguments).items():
        check_shared_memory(tensor, before[name])


@clause("TRAIN-1", "TRAIN-5", "RESHARE-2", "RESHARE-5", pairwise=True, mainly="TRAIN-1")
def test_module_is_one_memory_however_often_it_is_sent(
    sender, receiver, bystander, channel
):
    """A module goes to the receiver twice, back, and on to a third process."""
    module = make_with_buffers(sender)
    first = sender.send(module, receiver, channel)
    second = sender.send({"deep": [module]}, receiver, channel)["deep"][0]
    back = receiver.send(second, sender, channel)
    onward = receiver.send(first, bystander, channel)
    places = [
        *((sender, module), (receiver, first), (receiver, second)),
        *((sender, back), (bystander, onward)),
    ]
    found = [members_of(*place) for place in places]
    for one in found:
        check.equal(values_of(one), LAYER | BUFFERS, "it has its names and values")
    for name in (*LAYER, *BUFFERS):
        check_shared_memory(*(one[name] for one in found))


@clause("TRAIN-1", "TRAIN-2", "TRAIN-5", "RESHARE-6", mainly="TRAIN-1")
def test_module_named_with_its_tensors_arrives_as_one(sender, receiver):
    """A message names a module twice, one of its tensors, and its state_dict."""
    module = make_with_buffers(sender)
    own = members_of(sender, module)
    message = [own["mean"], module, own["weight"], {"again": module}]
    arrived = sender.send([*message, sender.state_dict(module)], receiver)
    mean, there, weight, names, state = arrived
    check(names["again"].same_object_as(there), "both names are one module")
    theirs = members_of(receiver, there)
    check(mean.same_object_as(theirs["mean"]), "its buffer is the one named before it")
    check(weight.same_object_as(theirs["weight"]), "its parameter that behind it")
    check.equal(values_of(state), LAYER | BUFFERS, "all are in the state_dict")
    with judging("TRAIN-2"):
        for name, tensor in state.items():
            check_shared_memory(tensor, theirs[name], own[name])


PARAMETER_SIZES = (1, 0, 2, 1023, 1024, 1025, 5000)
BUFFER_SIZES = {"none": 0, "one": 1, "many": 3000}


@clause("TRAIN-1", "TRAIN-5", "TRAIN-6", pairwise=True, mainly="TRAIN-1")
def test_module_may_have_tensors_of_any_size_and_number(sender, receiver):
    """Modules have many parameters and buffers, of no elements and of more than a page.

    The first is shared before it is sent, the second is not.
    """
    sizes = {f"p{n}": count for n, count in enumerate(3 * PARAMETER_SIZES)}
    values = {name: [float(n) for n in range(count)] for name, count in sizes.items()}
    for number in range(2):
        module = sender.make_module(values)
        for name, count in BUFFER_SIZES.items():
            sender.add_buffer(module, name, [2.0] * count, True)
        if number == 0:
            sender.share_module(module)
        arrived = sender.send(module, receiver)
        ours, theirs = members_of(sender, module), members_of(receiver, arrived)
        check.equal(sorted(theirs), sorted([*values, *BUFFER_SIZES]), "all are there")
        for name, tensor in theirs.items():
            check.equal(tensor.values(), ours[name].values(), f"{name} has its values")
            if length := tensor.shape()[0]:
                for writer, reader in ((tensor, ours[name]), (ours[name], tensor)):
                    writer.write(length - 1, -writer.read(length - 1) - 1)
                    found = reader.read(length - 1)
                    check.equal(found, writer.read(length - 1), f"{name} is shared")


@clause(
    *("TRAIN-1", "TRAIN-5", "START-2"),
    start_methods=("spawn", "forkserver"),
    vary=("start_method",),
    mainly="TRAIN-1",
)
def test_module_among_the_arguments_of_a_process_is_shared(owner):
    """The owner ties two parameters of a module and starts a child with it."""
    module = make_with_buffers(owner)
    owner.tie(module, "weight", "bias")
    child = owner.start_peer(arguments={"module": module})
    there = child.arguments["module"]
    ours, theirs = members_of(owner, module), members_of(child, there)
    check.equal(values_of(theirs), values_of(ours), "it has its names and values")
    check(theirs["bias"].same_object_as(theirs["weight"]), "which are tied there too")
    for name, tensor in ours.items():
        check_shared_memory(tensor, theirs[name])


@clause(
    "TRAIN-1",
    "START-4",
    start_methods=("fork",),
    private=True,
    vary=("strategy", "start_method"),
)
def test_module_that_was_not_shared_is_private_after_a_fork(owner):
    """A child inherits a module that nobody has shared, and sends its own back."""
    module = make_with_buffers(owner)
    child = owner.start_peer(arguments=module)
    ours, theirs = members_of(owner, module), members_of(child, child.arguments)
    for name, tensor in ours.items():
        check_private_memory(tensor, theirs[name])
    back = members_of(owner, child.send(child.arguments, owner))
    with judging("TRAIN-1"):
        for name, tensor in back.items():
            check_shared_memory(tensor, theirs[name])
            check_private_memory(tensor, ours[name])


@clause("TRAIN-3", profiles=("grad",), pairwise=True)
def test_parameter_is_one_each_time_it_arrives(sender, receiver, bystander, channel):
    """Parameters are frozen and freed between sends, and go back and on."""
    module = sender.make_module(LAYER)
    for turn, flag in enumerate((True, False, False, True)):
        own = sender.parameters(module)
        own["weight"].set_requires_grad(flag)
        first = sender.send(own["weight"], receiver, channel)
        back = receiver.send(first, sender, channel)
        onward = receiver.send([first], bystander, channel)[0]
        whole = sender.send(module, receiver, channel)
        inside = receiver.parameters(whole)
        for one in (first, back, onward, inside["weight"]):
            check.equal(one.is_parameter(), True, f"it is a parameter ({turn})")
            check.equal(one.requires_grad(), flag, f"with its flag ({turn})")
            check.equal(one.is_leaf(), True, f"and a leaf ({turn})")
        check.equal(inside["bias"].requires_grad(), True, "the other one has its own")
        receiver.parameters(whole)["weight"].set_requires_grad(not flag)
        check.equal(own["weight"].requires_grad(), flag, "the sender's is as it was")


@clause("GRAD-2", "GRAD-3", profiles=("modules",), pairwise=True)
def test_grads_of_parameters_arrive_with_their_module(sender, receiver, channel):
    """The sender sends a module of which one parameter has a grad, twice."""
    module = sender.make_module(LAYER)
    grad = sender.make([7, 8, 9])
    sender.parameters(module)["weight"].set_grad(grad)
    for _ in range(2):
        theirs = receiver.parameters(sender.send(module, receiver, channel))
        check(theirs["bias"].grad() is None, "the other parameter has none")
        arrived = theirs["weight"].grad()
        check(arrived is not None, "the grad has arrived")
        check.equal(repr(arrived.values()), repr(grad.values()), "with its values")
        with judging("GRAD-3"):
            check_shared_memory(grad, arrived)
    sender.parameters(module)["weight"].set_grad(None)
    theirs = receiver.parameters(sender.send(module, receiver, channel))
    check(theirs["weight"].grad() is None, "one that was taken away does not arrive")


GRAD_VALUES = {"weight": [6, 7, 8], "bias": [9, 10]}


def make_with_grads(actor):
    """Return a module whose parameters, except one, have grads; and these grads."""
    module = actor.make_module(LAYER | {"frozen": [11, 12]})
    parameters = actor.parameters(module)
    for name, values in GRAD_VALUES.items():
        parameters[name].set_grad(actor.make(values))
    return module, {name: parameters[name].grad() for name in GRAD_VALUES}


@clause("TRAIN-7", profiles=("grad", "share"))
def test_grads_of_a_module_are_shared_in_place(owner, peer):
    """Owner and peer share a module with grads, and take the grads before and after."""
    for actor in (owner, peer):
        module, before = make_with_grads(actor)
        shared = [grad.is_shared() for grad in before.values()]
        check.equal(shared, [False, False], "they are not shared yet")
        actor.share_module(module)
        parameters = actor.parameters(module)
        for name, grad in before.items():
            check.equal(grad.is_shared(), True, f"the grad of {name} is shared")
            now = parameters[name].grad()
            check(now.same_object_as(grad), "and is the same object")
            check.equal(now.values(), GRAD_VALUES[name], "with its values")
        none = parameters["frozen"].grad()
        check.equal(none, None, "a parameter without grad has none")


@clause(
    "TRAIN-7",
    profiles=("grad",),
    start_methods=("fork",),
    vary=("strategy", "start_method"),
)
def test_grads_of_a_module_shared_before_a_fork_are_shared(owner):
    """The owner shares a module with grads and forks twice; all three write to them."""
    module, grads = make_with_grads(owner)
    owner.share_module(module)
    children = [owner.start_peer(arguments=module) for _ in range(2)]
    for name in GRAD_VALUES:
        theirs = [child.parameters(child.arguments)[name].grad() for child in children]
        values = [grad.values() for grad in theirs]
        check.equal(values, 2 * [GRAD_VALUES[name]], "the children have the values")
        check_shared_memory(grads[name], *theirs)
    for name, values in LAYER.items():
        found = owner.parameters(module)[name].values()
        check.equal(found, values, "the parameters are as they were")


@clause(
    "TRAIN-7",
    profiles=("grad", "views"),
    views=("slices",),
    start_methods=("fork",),
    vary=("strategy", "start_method"),
)
def test_grads_of_parameters_in_one_storage_are_shared_before_a_fork(owner):
    """The parameters of the module are parts of one tensor; each has a grad."""
    module = owner.make_module({})
    flat = owner.make(list(range(6)))
    for name, (offset, length) in {"weight": (0, 3), "bias": (3, 2)}.items():
        part = Layout("slices", offset, (length,), (1,))
        owner.add_parameter(module, name, owner.view(flat, part))
        owner.parameters(module)[name].set_grad(owner.make(GRAD_VALUES[name]))
    owner.share_module(module)
    child = owner.start_peer(arguments=module)
    ours, theirs = owner.parameters(module), child.parameters(child.arguments)
    for name in ours:
        check_shared_memory(ours[name].grad(), theirs[name].grad())
        check_shared_memory(ours[name], theirs[name])


@clause(
    "TRAIN-7",
    profiles=("grad", "share"),
    start_methods=("fork",),
    vary=("strategy", "start_method"),
)
def test_grads_that_came_after_a_module_was_shared_are_shared_with_it_again(owner):
    """The owner shares a module, sets grads, shares it, sets others, and once more.

    A child that is forked then writes to the last grads, and so does the owner.
    """
    module, _ = make_with_grads(owner)
    owner.share_module(module)
    parameters = owner.parameters(module)
    grads = {}
    for number in range(2):
        for name, values in GRAD_VALUES.items():
            later = [value + 100 + number for value in values]
            parameters[name].set_grad(owner.make(later))
            grads[name] = parameters[name].grad()
        owner.share_module(module)
        for name, values in GRAD_VALUES.items():
            check.equal(grads[name].is_shared(), True, f"the grad of {name} is shared")
            now = parameters[name].grad()
            check(now.same_object_as(grads[name]), "and is the same object")
            later = [value + 100 + number for value in values]
            check.equal(now.values(), later, "with its values")
    child = owner.start_peer(arguments=module)
    theirs = child.parameters(child.arguments)
    for name in GRAD_VALUES:
        check_shared_memory(grads[name], theirs[name].grad())
