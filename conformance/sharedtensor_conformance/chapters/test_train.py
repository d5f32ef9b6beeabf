"""Chapter TRAIN: models, whose parameters several processes train."""

from sharedtensor_conformance.chapters.stories import each_sees_the_writes_of_the_others
from sharedtensor_conformance.harness import check, clause

LAYER = {"weight": [1, 2, 3], "bias": [4, 5]}
BUFFERS = {"mean": [21, 22], "variance": [23, 24, 25]}


def values_of(tensors):
    """Return the values of named tensors."""
    return {name: tensor.values() for name, tensor in tensors.items()}


def make_normalized(actor):
    """Return a module with parameters and buffers."""
    module = actor.make_module(LAYER)
    for name, values in BUFFERS.items():
        actor.add_buffer(module, name, values)
    return module


@clause("TRAIN-1", vary=("strategy",))
def test_module_arrives_with_its_parameters_shared(sender, receiver, channel):
    """The sender sends a module; both sides write to each of its parameters."""
    module = sender.make_module(LAYER)
    arrived = sender.send(module, receiver, channel)
    ours, theirs = sender.parameters(module), receiver.parameters(arrived)
    check.equal(values_of(theirs), LAYER, "the names and values are the sender's")
    for name in LAYER:
        each_sees_the_writes_of_the_others(ours[name], theirs[name])


@clause("TRAIN-1", vary=("strategy",))
def test_module_sent_to_two_processes_is_shared_by_all(sender, receiver, bystander):
    """The sender sends one module to both others; all three write to it."""
    module = sender.make_module({"weight": [6, 7, 8, 9]})
    weights = [sender.parameters(module)["weight"]]
    for to in (receiver, bystander):
        weights.append(to.parameters(sender.send(module, to))["weight"])
    each_sees_the_writes_of_the_others(*weights)


@clause("TRAIN-2", vary=("strategy",))
def test_state_dict_arrives_with_its_tensors_shared(sender, receiver, channel):
    """The sender sends a state_dict; both sides write, and the module reads it."""
    module = sender.make_module(LAYER)
    arrived = sender.send(sender.state_dict(module), receiver, channel)
    check.equal(values_of(arrived), LAYER, "the names and values are the sender's")
    parameters = sender.parameters(module)
    for name in LAYER:
        each_sees_the_writes_of_the_others(arrived[name], parameters[name])


@clause("TRAIN-2", vary=("strategy",))
def test_state_dict_and_module_are_one_memory_in_the_receiver(sender, receiver):
    """The sender sends a module and its state_dict; the receiver writes to both."""
    module = sender.make_module({"weight": [10, 11, 12]})
    state = sender.send(sender.state_dict(module), receiver)
    received = receiver.parameters(sender.send(module, receiver))["weight"]
    own = sender.parameters(module)["weight"]
    each_sees_the_writes_of_the_others(received, state["weight"], own)


def change(actor, module):
    """Replace a parameter of a module and a buffer; return all values that it has."""
    actor.tie(module, "weight", "bias")
    actor.add_buffer(module, "mean", [26, 27, 28])
    changed = {"bias": LAYER["weight"], "mean": [26, 27, 28]}
    return LAYER | BUFFERS | changed


@clause("TRAIN-2", "TRAIN-5", vary=("strategy",))
def test_state_dict_has_what_the_module_has_at_each_send(sender, receiver):
    """The sender sends a state_dict, replaces tensors of the module, and sends again.

    The module has as many parameters and buffers as before, under the same names.
    """
    module = make_normalized(sender)
    arrived = sender.send(sender.state_dict(module), receiver)
    check.equal(values_of(arrived), LAYER | BUFFERS, "all are there")
    expected = change(sender, module)
    again = sender.send(sender.state_dict(module), receiver)
    check.equal(values_of(again), expected, "those that were replaced are there")
    own = sender.parameters(module) | sender.buffers(module)
    for name in expected:
        each_sees_the_writes_of_the_others(again[name], own[name])
    check.equal(arrived["bias"].values(), LAYER["bias"], "the old one is as it was")


@clause("TRAIN-1", "TRAIN-5", vary=("strategy",))
def test_module_arrives_with_what_it_has_at_each_send(sender, receiver):
    """The sender sends a module, replaces tensors of it, and sends it again."""
    module = make_normalized(sender)
    first = sender.send(module, receiver)
    expected = change(sender, module)
    second = sender.send(module, receiver)
    arrived = receiver.parameters(second) | receiver.buffers(second)
    check.equal(values_of(arrived), expected, "those that were replaced are there")
    own = sender.parameters(module) | sender.buffers(module)
    for name in expected:
        each_sees_the_writes_of_the_others(arrived[name], own[name])
    kept = receiver.parameters(first)["bias"]
    check.equal(kept.values(), LAYER["bias"], "the first one is as it was")


@clause("TRAIN-3", profiles=("grad",), vary=("strategy",))
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


@clause("TRAIN-3", profiles=("grad",), vary=("strategy",))
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


@clause("TRAIN-4", start_methods=("fork",))
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


@clause("TRAIN-4", start_methods=("fork",))
def test_two_children_train_one_module(owner):
    """The owner shares a module and forks twice; the children write in turn."""
    module = owner.make_module({"weight": [15, 16, 17]})
    owner.share_module(module)
    children = [owner.start_peer(arguments=module) for _ in range(2)]
    weights = [child.parameters(child.arguments)["weight"] for child in children]
    each_sees_the_writes_of_the_others(*weights, owner.parameters(module)["weight"])


@clause("TRAIN-4", profiles=("grad",), start_methods=("fork",))
def test_frozen_parameter_of_a_shared_module_is_shared(owner):
    """The owner freezes one parameter, shares and forks; the child writes to both."""
    module = owner.make_module(LAYER)
    owner.parameters(module)["bias"].set_requires_grad(False)
    owner.share_module(module)
    child = owner.start_peer(arguments=module)
    theirs, own = child.parameters(child.arguments), owner.parameters(module)
    for name in LAYER:
        each_sees_the_writes_of_the_others(theirs[name], own[name])


@clause("TRAIN-5", vary=("strategy",))
def test_module_arrives_with_its_buffers_shared(sender, receiver, channel):
    """The sender sends a module; both sides write to each of its buffers."""
    module = make_normalized(sender)
    arrived = sender.send(module, receiver, channel)
    ours, theirs = sender.buffers(module), receiver.buffers(arrived)
    check.equal(values_of(theirs), BUFFERS, "the names and values are the sender's")
    for name in BUFFERS:
        check.equal(theirs[name].is_parameter(), False, "it is no parameter")
        each_sees_the_writes_of_the_others(ours[name], theirs[name])
    found = values_of(receiver.parameters(arrived))
    check.equal(found, LAYER, "the parameters are as they were")


@clause("TRAIN-5", vary=("strategy",))
def test_buffers_in_a_state_dict_arrive_shared(sender, receiver, channel):
    """The sender sends a state_dict; both sides write, and the module reads it."""
    module = make_normalized(sender)
    arrived = sender.send(sender.state_dict(module), receiver, channel)
    check.equal(values_of(arrived), LAYER | BUFFERS, "names and values are all there")
    ours = sender.buffers(module)
    for name in BUFFERS:
        each_sees_the_writes_of_the_others(arrived[name], ours[name])


@clause("TRAIN-6", profiles=("share",), vary=("strategy",))
def test_buffers_are_shared_in_place(owner, peer):
    """Owner and peer take the buffers of a module, share it, and take them again."""
    for actor in (owner, peer):
        module = make_normalized(actor)
        before = actor.buffers(module)
        shared = [tensor.is_shared() for tensor in before.values()]
        check.equal(shared, [False, False], "they are not shared yet")
        actor.share_module(module)
        after = actor.buffers(module)
        check.equal(values_of(after), BUFFERS, "they have their values")
        for name in BUFFERS:
            check.equal(after[name].is_shared(), True, "each is shared")
            check(after[name].same_object_as(before[name]), "and is the same object")


@clause("TRAIN-6", start_methods=("fork",))
def test_buffers_of_a_module_shared_before_a_fork_are_shared(owner):
    """The owner shares a module and forks; child and owner write to its buffers."""
    module = make_normalized(owner)
    owner.share_module(module)
    child = owner.start_peer(arguments=module)
    ours, theirs = owner.buffers(module), child.buffers(child.arguments)
    check.equal(values_of(theirs), BUFFERS, "the names and values are the owner's")
    for name in BUFFERS:
        each_sees_the_writes_of_the_others(theirs[name], ours[name])
