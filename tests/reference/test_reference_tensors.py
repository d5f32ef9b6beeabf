"""Tensors as windows on storages: what no clause speaks of."""

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


def through_a_pickle(value):
    return pickle.loads(pickle.dumps(value))


# Windows


VIEWS = {
    "slice": lambda t: t[1:],
    "reversed": lambda t: t[::-1, 2:0:-1],
    "element": lambda t: t[2, 3],
    "new_axis": lambda t: t[None, ..., 1],
    "transposed": lambda t: t.T,
    "swapped": lambda t: t.transpose(0, -1),
    "expanded": lambda t: t[:, :1].expand(2, 3, -1),
    "overlapping": lambda t: t.as_strided((4, 3), (1, 2), 2),
    "bytes": lambda t: t.view_dtype("uint8"),
    "flat": lambda t: t.view(-1),
    "detached": lambda t: t.detach(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_view_aliases_its_base_here_and_after_a_send(name):
    grid = sharedtensor.arange(12, dtype="int32").reshape(3, 4)
    view = VIEWS[name](grid)
    received = through_a_queue(view)
    first = (0,) * view.ndim
    received[first] = 99
    for each in (view, received):
        assert each.storage is grid.storage
        assert each.stride() == view.stride()
        assert each.data_ptr() == view.data_ptr()
        assert each[first].item() == 99


def test_what_no_window_can_show_is_refused():
    with pytest.raises(ValueError, match="multiples of its size"):
        sharedtensor.zeros(9, dtype="uint8")[1:9].view_dtype("int32")
    with pytest.raises(ValueError, match="incompatible"):
        sharedtensor.zeros(4).as_strided((5,), (1,))
    lazy = sharedtensor.tensor([1 + 2j, 3 - 1j]).conj()
    with pytest.raises(RuntimeError, match="resolve_conj"):
        lazy.numpy()
    assert lazy.resolve_conj().numpy().tolist() == [1 - 2j, 3 + 1j]


@pytest.mark.parametrize("dtype", ["O", "U3", "M8[s]", "V4"])
def test_dtype_without_numbers_is_refused(dtype):
    with pytest.raises(TypeError, match="numbers and booleans"):
        sharedtensor.zeros(2, dtype=dtype)


def test_dtype_of_another_byte_order_arrives():
    received = through_a_queue(sharedtensor.tensor(np.array([1, 2], ">i4")))
    assert (received.dtype.str, received.tolist()) == (">i4", [1, 2])


def test_no_dtype_is_the_default_one():
    for make in (sharedtensor.zeros, sharedtensor.ones, sharedtensor.empty):
        assert make(2, dtype=None).dtype == sharedtensor.float32


# Arrays of other libraries


ARRAYS = (lambda tensor: tensor.numpy(), np.asarray, np.from_dlpack)


@pytest.mark.parametrize("array_of", ARRAYS, ids=["numpy", "protocol", "dlpack"])
def test_array_stays_when_the_tensor_moves_and_when_it_goes(array_of):
    tensor = sharedtensor.arange(1000.0)
    array = array_of(tensor)
    tensor.share_memory_()
    tensor[5] = -1
    del tensor
    assert (array[5], array[999]) == (-1, 999)


def test_array_keeps_the_memory_that_its_storage_had_before_a_resize():
    tensor = sharedtensor.arange(4.0)
    arrays = [array_of(tensor) for array_of in ARRAYS[:2]]
    tensor.resize_(1_000_000)
    tensor[0] = 9
    assert tensor[1:4].tolist() == [1, 2, 3]
    assert [array.tolist() for array in arrays] == [[0, 1, 2, 3]] * 2


# Kinds of tensors that the clauses on kinds do not have


CARRIERS = {
    "pickle": through_a_pickle,
    "deep": copy.deepcopy,
    "message": through_a_queue,
    "shallow": copy.copy,
}


class SlottedParameter(sharedtensor.Parameter):
    """A parameter with a slot, one that it leaves empty, and an attribute."""

    __slots__ = ("empty", "mark")

    def __init__(self, data, mark):
        super().__init__(data)
        self.mark = self.label = mark

    def parts(self):
        assert not hasattr(self, "empty")
        return self.mark, self.label


class Filtered(sharedtensor.Tensor):
    """A subclass that takes a part out of the state that it inherits."""

    def __init__(self, data, mark):
        super().__init__(data)
        self.mark, self.lock = mark, threading.Lock()

    def __getstate__(self):
        return sharedtensor.Tensor.__getstate__(self) | {"lock": None}

    def __setstate__(self, state):
        sharedtensor.Tensor.__setstate__(self, state)
        self.lock = threading.Lock()

    def parts(self):
        assert not self.lock.locked()
        return self.mark


class Made(sharedtensor.Tensor):
    """A subclass whose `__new__` needs something, and that has no other state."""

    def __new__(cls, data=None, *, mark):
        made = super().__new__(cls)
        made.made_with = mark
        return made

    def __init__(self, data, mark):
        super().__init__(data)

    def __getstate__(self):
        return None

    def parts(self):
        return self.made_with


class MadeWithOption(Made):
    """A subclass whose `__new__` needs a keyword."""

    def __getnewargs_ex__(self):
        return (), {"mark": self.made_with}


class MadeWithArgument(Made):
    """A subclass whose `__new__` needs an argument."""

    def __new__(cls, data, mark):
        return super().__new__(cls, mark=mark)

    def __getnewargs__(self):
        return None, self.made_with


SUBCLASSES = [SlottedParameter, Filtered, MadeWithOption, MadeWithArgument]


class Reducing(SlottedParameter):
    """A subclass that adds to what it inherits."""

    def __reduce_ex__(self, version):
        rebuild, arguments, (grad, state), *rest = super().__reduce_ex__(version)
        state[1]["mark"] += " again"
        return rebuild, arguments, (grad, state), *rest

    def parts(self):
        return self.mark.removesuffix(" again"), self.mark.endswith(" again")


class InheritsReducing(Reducing):
    """What a class inherits decides, too."""


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
    tensor = SlottedParameter([1.0], mark=threading.Lock())
    for carry in (through_a_pickle, copy.deepcopy, through_a_queue):
        with pytest.raises(TypeError, match="lock"):
            carry(tensor)


# Modules


class SlottedModule(sharedtensor.Module):
    """A module with a slot and a property."""

    __slots__ = ("mark",)

    @property
    def doubled(self):
        return 2 * self._half

    @doubled.setter
    def doubled(self, value):
        self._half = value / 2


@pytest.mark.parametrize("carry", CARRIERS.values(), ids=CARRIERS)
def test_module_with_slots_is_carried(carry):
    module = SlottedModule()
    module.weight, module.mark, module.doubled = sharedtensor.Parameter([1.0]), "m", 3
    made = carry(module)
    assert (made.mark, made.doubled, made._half) == ("m", 3, 1.5)
    assert made.weight.tolist() == [1]
    assert "mark" not in vars(module)


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


# Computing


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


def test_in_place_methods_write_to_the_memory_that_is_shared():
    tensor = sharedtensor.ones(3).share_memory_()
    tensor += 1
    tensor.sub_(tensor, alpha=0.5)
    assert tensor.is_shared()
    assert tensor.tolist() == [1, 1, 1]


# Gradients


def test_results_of_leaves_that_require_grad_are_no_leaves():
    leaf = sharedtensor.ones(2, requires_grad=True)
    of_numpy = np.ones(2) * leaf, np.multiply(leaf, 2), np.float32(3) - leaf
    for result in (*of_numpy, leaf * 2, leaf[0], leaf.T, leaf.sum(), leaf.clone()):
        assert type(result) is sharedtensor.Tensor
        assert result.requires_grad
        assert not result.is_leaf
    written = sharedtensor.ones(2)
    written += leaf
    assert not written.is_leaf
    leaf.add_(sharedtensor.ones(2))
    assert leaf.is_leaf


def test_refusal_of_a_result_names_requires_grad():
    with pytest.raises(sharedtensor.NonLeafError, match="requires_grad"):
        through_a_queue(sharedtensor.ones(2, requires_grad=True) * 2)


def test_grad_is_a_tensor_of_the_same_shape_and_may_be_the_tensor_itself():
    tensor = sharedtensor.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="shape"):
        tensor.grad = sharedtensor.ones(3)
    with pytest.raises(TypeError, match="tensor or None"):
        tensor.grad = 1.0
    tensor.grad = tensor
    received = through_a_queue(tensor)
    assert received.grad is received
    tensor.share_memory_()
