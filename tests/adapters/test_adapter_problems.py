"""What is wrong with an adapter is said before anything is judged, a sentence each."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import pytest
from sharedtensor_conformance.adapter import Implementation, fits, problems_of
from sharedtensor_conformance.adapter_trial.inspection import describe
from sharedtensor_conformance.adapter_trial.operation_trial import problems_of_calls
from sharedtensor_conformance.adapters import numpy_copy, reference
from sharedtensor_conformance.adapters.loader import LoadingError
from sharedtensor_conformance.adapters.numpy_copy import NumpyCopyOperations
from sharedtensor_conformance.harness.case.outcomes import HarnessFault
from sharedtensor_conformance.harness.supervisor.supervisor_client import Supervisor

GOOD = replace(numpy_copy.conformance_adapter, dtypes=("float32",))


class TooFew(NumpyCopyOperations):
    def write(self, tensor, value):
        """Write somewhere."""


class TooMany(NumpyCopyOperations):
    def shape(self, tensor, order):
        """Return the shape in some order."""


class ByKeyword(NumpyCopyOperations):
    def read(self, tensor, *, index):
        """Return one element."""


class NoFunction(NumpyCopyOperations):
    values = ()


class Generous(NumpyCopyOperations):
    def read(self, *arguments):
        """Return one element."""

    def shape(self, tensor, order="C"):
        """Return the shape."""

    values = staticmethod(partial(NumpyCopyOperations.values, None))
    release = print


@pytest.mark.parametrize(
    ("operations", "call"),
    [
        (TooFew, "write(tensor, index, value)"),
        (TooMany, "shape(tensor)"),
        (ByKeyword, "read(tensor, index)"),
        (NoFunction, "values(tensor)"),
    ],
)
def test_operation_that_cannot_be_called_as_the_contract_says(operations, call):
    (problem,) = problems_of(GOOD, operations())
    name = call.partition("(")[0]
    assert problem == (
        f"the operation {name!r} cannot be called as {call}, which the suite does: "
        f"give it these parameters"
    )


def test_operation_may_take_more_than_the_contract_says():
    assert problems_of(GOOD, Generous()) == []


def test_nobody_can_tell_what_a_function_without_a_signature_takes():
    assert fits(type, ["one", "two"])
    assert not fits(3, [])


@pytest.mark.parametrize(
    ("claims", "told"),
    [
        (("core", "grad"), "profile 'grad' is claimed but the operation 'detach' is"),
        (("core", "telepathy"), "the claim 'telepathy' is not a profile"),
        (("views",), "the profile 'core' is not claimed: every adapter claims it"),
    ],
)
def test_claim_that_nothing_is_behind(claims, told):
    problems = problems_of(
        replace(GOOD, claims=frozenset(claims)), NumpyCopyOperations()
    )
    assert any(problem.startswith(told) for problem in problems), problems


SLICING = replace(GOOD, views=("slices", "transposed"))


class NoBytes(NumpyCopyOperations):
    def __getattribute__(self, name):
        if name == "reinterpret":
            raise AttributeError(name)
        return super().__getattribute__(name)


def test_bytes_of_another_dtype_need_no_operation_where_no_view_has_them():
    assert problems_of(SLICING, NoBytes()) == []
    (problem,) = problems_of(GOOD, NoBytes())
    assert problem == (
        "profile 'views' is claimed but the operation 'reinterpret' is missing: add "
        "it, or drop the claim, or remove 'reinterpreted' from views"
    )
    (problem,) = problems_of(SLICING, NumpyCopyOperations())
    assert problem == (
        "the operation 'reinterpret' is there but views has no 'reinterpreted': add "
        "it, or remove the operation"
    )


def test_share_without_private_tensors_could_not_be_judged():
    at_once = replace(GOOD, claims=GOOD.claims | {"share"}, private=False)
    assert (
        "the profile 'share' is claimed, but there is nothing to judge it on: add "
        "private=True, or drop the claim"
    ) in problems_of(at_once, NumpyCopyOperations())


def test_views_without_slices_could_not_be_judged():
    (problem,) = problems_of(replace(SLICING, views=("transposed",)), NoBytes())
    assert problem == (
        "the profile 'views' is claimed, but there is nothing to judge it on: add "
        "'slices' in views, or drop the claim"
    )


class Unwritten(NumpyCopyOperations):
    def read(self, tensor, index):
        """Return one element."""
        raise NotImplementedError("soon")


class WrittenInPart(NumpyCopyOperations):
    def read(self, tensor, index):
        if len(index) > 1:
            raise NotImplementedError
        return super().read(tensor, index)


def test_operation_that_is_not_written_yet():
    (problem,) = problems_of(GOOD, Unwritten())
    line = Unwritten.read.__code__.co_firstlineno
    assert problem == (
        f"profile 'core' is claimed but the operation 'read' is not written yet "
        f"({__file__}, line {line}): write it, or drop the claim"
    )
    assert problems_of(GOOD, WrittenInPart()) == []


class WritesToACopy(NumpyCopyOperations):
    def write(self, tensor, index, value):
        tensor.copy()[index] = value


class KnowsNoTensor(NumpyCopyOperations):
    def is_tensor(self, value):
        return False


class Ends(NumpyCopyOperations):
    def enter_child(self, strategy):
        raise SystemExit(3)


class ReleasesNothing(NumpyCopyOperations):
    def release(self, tensor):
        raise KeyError(tensor.shape)


@pytest.mark.parametrize(
    ("operations", "said"),
    [
        (
            WritesToACopy,
            "the operation 'values' returned [1.0, 0.0, 1.0] after a write of 1 "
            "to [1]; expected [1, 1, 1]",
        ),
        (
            KnowsNoTensor,
            "the operation 'is_tensor' returned False of what `encode` returned; "
            "expected True",
        ),
        (Ends, "the operation 'enter_child' raised SystemExit: 3 ("),
        (ReleasesNothing, "the operation 'release' raised KeyError: (3,) ("),
    ],
)
def test_operation_that_does_not_do_what_the_contract_says(operations, said):
    (problem,) = problems_of_calls(GOOD, operations())
    assert problem.startswith(said)


def test_operations_that_do_as_the_contract_says_have_no_problems():
    assert problems_of_calls(GOOD, NumpyCopyOperations()) == []


def test_operations_are_not_tried_without_the_processor():
    elsewhere = replace(GOOD, devices=("cuda",))
    assert problems_of_calls(elsewhere, WritesToACopy()) == []


def whole(**changes) -> list[str]:
    """Return the problems of the claims of the reference with such changes."""
    adapter: Implementation = replace(reference.conformance_adapter, **changes)
    return problems_of(adapter, reference.ReferenceOperations())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"dtypes": ("float32",)},
            "'lazy' is claimed, .* add a complex dtype, or drop",
        ),
        (
            {"devices": ("cpu",)},
            "'cuda' is claimed, .* add a device, simulated or cuda",
        ),
        ({"segment_pattern": ""}, "'strategy-fs' is claimed, .* add a segment_pattern"),
        ({"manager_pattern": ""}, "'manager' is claimed, .* add a manager_pattern"),
        (
            {"strategies": ("file_system", "fd")},
            "'strategy-fd' is claimed, .* add the strategy 'file_descriptor', or drop",
        ),
        (
            {"dtypes": ("complex64",)},
            "the dtype 'float32' is not claimed, .*: claim it",
        ),
    ],
)
def test_claim_that_nothing_could_be_judged_on(changes, said):
    (problem,) = whole(**changes)
    assert re.search(said, problem), problem


def test_claims_of_the_reference_have_something_to_be_judged_on():
    assert whole() == []


def test_supervisor_that_gives_no_answer_is_told_in_a_sentence(monkeypatch):
    def run(supervisor, function):
        name = function.__name__
        raise HarnessFault(f"the supervisor gave no answer to {name!r} within 5 s")

    monkeypatch.setattr(Supervisor, "run", run)
    with pytest.raises(LoadingError, match=r"no answer to 'status' .*--patience"):
        describe("reference", 5.0)


def test_supervisor_that_does_not_start_in_time_is_told_in_a_sentence():
    """As on a machine with no time for it: the adapter is not to blame."""
    with pytest.raises(LoadingError) as caught:
        describe("reference", 0.001)
    said = str(caught.value)
    assert "no supervisor could be started: none answered within 0.001 s" in said
    assert "set its time limit with `--patience`" in said
