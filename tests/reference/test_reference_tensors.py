"""Tensors as windows on storages, in one process and through a message."""

import copy
import pickle
import threading

import numpy as np
import pytest
import sharedtensor
import sharedtensor.multiprocessing as mp


def through_a_queue(value):
    channel = mp.SimpleQueue()
    channel.put(value)
    return channel.get()


@pytest.fixture(params=["private", "shared"])
def grid(request):
    grid = sharedtensor.arange(12, dtype="int32").reshape(3, 4)
    return grid.share_memory_() if request.param == "shared" else grid


VIEWS = {
    "slice": lambda t: t[1:],
    "step": lambda t: t[:, ::2],
    "reversed": lambda t: t[::-1, 2:0:-1],
    "column": lambda t: t[:, 1],
    "element": lambda t: t[2, 3],
    "new_axis": lambda t: t[None, ..., 1],
    "transposed": lambda t: t.T,
    "swapped": lambda t: t.transpose(0, -1),
    "expanded": lambda t: t[:, :1].expand(2, 3, 4),
    "overlapping": lambda t: t.as_strided((4, 3), (1, 2), 2),
    "bytes": lambda t: t.view_dtype("uint8"),
    "flat": lambda t: t.view(-1),
    "detached": lambda t: t.detach(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_view_aliases_its_base_here_and_after_a_send(grid, name):
    view = VIEWS[name](grid)
    received = through_a_queue(view)
    for each in (view, received):
        assert each.storage is grid.storage
        assert each.stride() == view.stride()
        assert each.data_ptr() == view.data_ptr()
        assert np.asarray(each).tolist() == view.tolist()
    first = (0,) * view.ndim
    received[first] = 99
    assert view[first].item() == 99
    assert grid.tolist() == np.asarray(grid).tolist()


def test_view_within_an_element_is_refused():
    raw = sharedtensor.zeros(9, dtype="uint8")
    with pytest.raises(ValueError, match="multiples of its size"):
        raw[1:9].view_dtype("int32")


def test_window_outside_the_storage_is_refused():
    with pytest.raises(ValueError, match="incompatible"):
        sharedtensor.zeros(4).as_strided((5,), (1,))


def test_foreign_byte_order_arrives():
    received = through_a_queue(sharedtensor.tensor(np.array([1, 2], ">i4")))
    assert received.dtype.str == ">i4"
    assert received.tolist() == [1, 2]


@pytest.mark.parametrize("dtype", ["O", "U3", "M8[s]", "V4"])
def test_dtype_without_numbers_is_refused(dtype):
    with pytest.raises(TypeError, match="numbers and booleans"):
        sharedtensor.zeros(2, dtype=dtype)


def test_arrays_taken_before_the_move_stay_valid_and_alias():
    tensor = sharedtensor.arange(100_000.0)
    array, protocol = tensor.numpy(), np.asarray(tensor)
    exchanged, view = np.from_dlpack(tensor), tensor[5:]
    address = tensor.data_ptr()
    tensor.share_memory_()
    tensor[5] = -1
    assert tensor.data_ptr() == address
    assert array[5] == protocol[5] == exchanged[5] == view[0].item() == -1
    assert array[99_999] == 99_999


def test_array_outlives_its_tensor():
    tensor = sharedtensor.arange(1000.0).share_memory_()
    array, plain = np.asarray(tensor), tensor.numpy()
    del tensor
    assert array.sum() == plain.sum() == 499_500
    array[0] = 1
    assert plain[0] == 1


def test_private_storage_is_resized_and_old_arrays_stay_valid():
    tensor = sharedtensor.arange(4.0)
    array, protocol = tensor.numpy(), np.asarray(tensor)
    tensor.resize_(1_000_000)
    assert tensor[:4].tolist() == array.tolist() == protocol.tolist() == [0, 1, 2, 3]
    tensor[0] = 9
    assert array[0] == protocol[0] == 0


def test_clone_and_results_of_a_shared_tensor_are_private():
    tensor = sharedtensor.ones(3).share_memory_()
    for private in (tensor.clone(), tensor + 0, copy.deepcopy(tensor)):
        assert not private.is_shared()
        private[0] = 5
    assert tensor.tolist() == [1, 1, 1]
    tensor += 1
    tensor.sub_(tensor, alpha=0.5)
    assert tensor.is_shared()
    assert tensor.tolist() == [1, 1, 1]


def test_no_write_of_another_thread_is_lost_in_the_move():
    lost = 0
    for _ in range(30):
        tensor, ready, stop = sharedtensor.zeros(100_000), [], []
        array = tensor.numpy()
        thread = threading.Thread(target=count_up, args=(array, ready, stop))
        thread.start()
        while not ready:
            pass
        tensor.share_memory_()
        stop.append(True)
        thread.join()
        lost += not array[0] == array[1] == ready[0]
    assert lost == 0


def count_up(array, ready, stop):
    ready.append(0)
    while not stop:
        ready[0] += 1
        array[0] += 1
        array[1] += 1


def test_lazily_conjugated_view_has_no_array_over_its_memory():
    lazy = sharedtensor.tensor([1 + 2j, 3 - 1j]).conj()
    assert np.asarray(lazy).tolist() == [1 - 2j, 3 + 1j]
    assert not lazy.resolve_conj().is_conj()
    with pytest.raises(RuntimeError, match="resolve_conj"):
        lazy.numpy()


def through_a_pickle(value):
    return pickle.loads(pickle.dumps(value))


COPIES = {"pickle": through_a_pickle, "deep": copy.deepcopy}
CARRIERS = {**COPIES, "message": through_a_queue, "shallow": copy.copy}


class Slotted(sharedtensor.Tensor):
    """A subclass with a slot, and one that it leaves empty."""

    __slots__ = ("__private", "empty", "mark")

    def __init__(self, data, mark):
        super().__init__(data)
        self.mark, self.__private = mark, [mark]

    def parts(self):
        assert not hasattr(self, "empty")
        return self.mark, self.__private


class SlottedParameter(sharedtensor.Parameter):
    """A parameter with a slot beside attributes."""

    __slots__ = ("mark",)

    def __init__(self, data, mark):
        super().__init__(data)
        self.mark = self.label = mark

    def parts(self):
        return self.mark, self.label


class Stateful(sharedtensor.Tensor):
    """A subclass that says what can be pickled of it."""

    def __init__(self, data, mark):
        super().__init__(data)
        self.mark, self.lock = mark, threading.Lock()

    def __getstate__(self):
        return (self.mark,)

    def __setstate__(self, state):
        (self.mark,) = state
        self.lock = threading.Lock()

    def parts(self):
        assert not self.lock.locked()
        return self.mark


class Filtered(Stateful):
    """A subclass that calls what it inherits."""

    def __getstate__(self):
        return sharedtensor.Tensor.__getstate__(self) | {"lock": None}

    def __setstate__(self, state):
        sharedtensor.Tensor.__setstate__(self, state)
        self.lock = threading.Lock()


class MadeWithOption(sharedtensor.Tensor):
    """A subclass whose `__new__` needs a keyword."""

    def __new__(cls, *arguments, mark):
        made = super().__new__(cls)
        made.made_with = mark
        return made

    def __init__(self, data, mark):
        super().__init__(data)

    def __getnewargs_ex__(self):
        return (), {"mark": self.made_with}

    def __getstate__(self):
        return None

    def parts(self):
        return self.made_with


class MadeWithArgument(sharedtensor.Tensor):
    """A subclass whose `__new__` needs an argument."""

    def __new__(cls, data, mark):
        made = super().__new__(cls)
        made.made_with = mark
        return made

    def __init__(self, data, mark):
        super().__init__(data)

    def __getnewargs__(self):
        return None, self.made_with

    __getstate__ = MadeWithOption.__getstate__
    parts = MadeWithOption.parts


class Reducing(Slotted):
    """A subclass that adds to what it inherits."""

    def __reduce_ex__(self, version):
        rebuild, arguments, (grad, state), *rest = super().__reduce_ex__(version)
        state[1]["mark"] += " again"
        return rebuild, arguments, (grad, state), *rest

    def parts(self):
        return self.mark.removesuffix(" again"), self.mark.endswith(" again")


class InheritsReducing(Reducing):
    """What a class inherits decides, too."""


SUBCLASSES = [SlottedParameter, Filtered, MadeWithOption, MadeWithArgument]
"""Those that the clauses on kinds of tensors do not have."""


@pytest.mark.parametrize("carry", CARRIERS.values(), ids=CARRIERS)
@pytest.mark.parametrize("kind", SUBCLASSES)
def test_subclass_is_carried_by_the_rules_of_python(kind, carry):
    tensor = kind([1.0, 2.0], mark="mark")
    tensor.grad = sharedtensor.tensor([3.0, 4.0])
    made = carry(tensor)
    assert type(made) is kind
    assert made.tolist() == [1, 2]
    assert made.parts() == tensor.parts()
    assert made.requires_grad is tensor.requires_grad
    assert made.grad.tolist() == [3, 4]


@pytest.mark.parametrize("carry", CARRIERS.values(), ids=CARRIERS)
@pytest.mark.parametrize("kind", [Reducing, InheritsReducing])
def test_subclass_that_reduces_itself_decides(kind, carry):
    tensor = kind([1.0, 2.0], mark="mark")
    made = carry(tensor)
    assert (type(made), made.parts()) == (kind, ("mark", True))
    aliases = carry in (through_a_queue, copy.copy)
    assert (made.storage is tensor.storage) is aliases


def test_subclass_whose_new_gets_too_little_is_refused_by_name():
    tensor = MadeWithOption([1.0], mark="mark")
    with_nothing = tensor.__reduce__()[1][:4]
    with pytest.raises(TypeError, match="mark"):
        sharedtensor.protocol.rebuild_tensor(*with_nothing)


def test_subclass_with_a_part_that_cannot_be_pickled_is_refused():
    tensor = Slotted([1.0], mark=threading.Lock())
    for carry in (through_a_pickle, copy.deepcopy, through_a_queue):
        with pytest.raises(TypeError, match="lock"):
            carry(tensor)


@pytest.mark.parametrize("carry", CARRIERS.values(), ids=CARRIERS)
def test_module_with_slots_is_carried(carry):
    module = SlottedModule()
    module.weight, module.mark, module.doubled = sharedtensor.Parameter([1.0]), "m", 3
    made = carry(module)
    assert (made.mark, made.doubled, made._half) == ("m", 3, 1.5)
    assert made.weight.tolist() == [1]
    assert "mark" not in vars(module)


class SlottedModule(sharedtensor.Module):
    """A module with a slot and a property."""

    __slots__ = ("mark",)

    @property
    def doubled(self):
        return 2 * self._half

    @doubled.setter
    def doubled(self, value):
        self._half = value / 2


def test_state_is_loaded_into_the_tensors_of_a_module():
    module, inner = sharedtensor.Module(), sharedtensor.Module()
    module.first = inner.second = sharedtensor.Parameter(sharedtensor.ones(2))
    module.inner = inner
    module.register_buffer("steps", sharedtensor.tensor(0))
    state = module.state_dict()
    assert state.keys() == {"first", "inner.second", "steps"}
    module.load_state_dict({name: each + 1 for name, each in state.items()})
    assert state["first"].tolist() == module.first.tolist() == [2, 2]


def test_state_that_does_not_fit_changes_nothing_and_is_told_whole():
    module = sharedtensor.Module()
    for name in ("fits", "wide", "thing", "missing"):
        setattr(module, name, sharedtensor.Parameter(sharedtensor.zeros(2)))
    state = {"fits": sharedtensor.ones(2), "wide": sharedtensor.ones(1)}
    with pytest.raises(RuntimeError) as caught:
        module.load_state_dict({**state, "thing": None, "other": 1})
    told = str(caught.value).splitlines()[1:]
    assert told == [
        "  size mismatch: wide of shape (1,), not (2,)",
        "  no tensor: thing, a NoneType",
        "  missing: missing",
        "  unexpected: other",
    ]
    assert all(not one.any() for one in module.parameters())


def test_number_is_formatted_and_more_is_not():
    assert f"{sharedtensor.tensor(0.25):.4f} {sharedtensor.tensor([7]):03d}" == (
        "0.2500 007"
    )
    assert f"{sharedtensor.tensor(3)}" == "3"
    pair = sharedtensor.tensor([1, 2])
    assert f"{pair}" == str(pair)
    with pytest.raises(TypeError, match="format"):
        f"{pair:.1f}"


def test_functions_of_numpy_take_tensors():
    tensor = sharedtensor.tensor([[1.0, 2.0], [3.0, 5.0]])
    assert (np.sum(tensor), np.mean(tensor), np.max(tensor)) == (11, 2.75, 5)
    assert np.sum(tensor, axis=0).tolist() == [4, 7]
    assert np.concatenate([tensor, tensor]).shape == (4, 2)
    array = inside = np.ones((2, 2))
    array += tensor
    assert array is inside
    assert array.tolist() == [[2, 3], [4, 6]]
    np.add(array, 1, out=tensor)
    assert tensor.tolist() == [[3, 4], [5, 7]]
    assert np.add.reduce(tensor).tolist() == [8, 11]


def test_operand_of_numpy_gives_a_tensor_that_is_no_leaf():
    leaf = sharedtensor.ones(2, requires_grad=True)
    for result in (np.ones(2) * leaf, np.multiply(leaf, 2), np.float32(3) - leaf):
        assert type(result) is sharedtensor.Tensor
        assert not result.is_leaf


def test_write_of_numpy_to_a_conjugated_tensor_is_refused():
    lazy = sharedtensor.tensor(np.array([1j, 2j])).conj()
    assert np.sum(lazy) == -3j
    for write in (
        lambda: np.copyto(lazy, 0),
        lambda: np.add(lazy, 1, out=lazy),
        lambda: np.put(lazy, [0], 1),
    ):
        with pytest.raises(ValueError, match="read-only"):
            write()
    with pytest.raises(TypeError, match="NotImplemented"):
        np.add.at(lazy, [0], 1)


def test_no_dtype_is_the_default_one():
    for make in (sharedtensor.zeros, sharedtensor.ones, sharedtensor.empty):
        assert make(2, dtype=None).dtype == sharedtensor.float32


def test_grad_may_be_the_tensor_itself():
    tensor = sharedtensor.ones(2, requires_grad=True)
    tensor.grad = tensor
    received = through_a_queue(tensor)
    assert received.grad is received
    tensor.share_memory_()


def test_grad_of_another_shape_is_refused():
    tensor = sharedtensor.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="shape"):
        tensor.grad = sharedtensor.ones(3)
    with pytest.raises(TypeError, match="tensor or None"):
        tensor.grad = 1.0


def test_results_of_leaves_that_require_grad_are_no_leaves():
    leaf = sharedtensor.ones(2, requires_grad=True)
    for result in (leaf * 2, 2 - leaf, leaf[0], leaf.T, leaf.sum(), leaf.clone()):
        assert result.requires_grad
        assert not result.is_leaf
    assert leaf.detach().is_leaf
    written = sharedtensor.ones(2)
    written += leaf
    assert not written.is_leaf
    leaf.add_(sharedtensor.ones(2))
    assert leaf.is_leaf
