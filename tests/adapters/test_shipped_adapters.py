"""The adapters that ship: well-formed, quiet on import, and true to their words."""

import pickle
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
from sharedtensor_conformance.adapters.numpy_copy import StridedArray
from sharedtensor_conformance.harness.supervisor.template import why_not_preloaded

FRAMEWORKS = {
    "mindspore": "mindspore",
    "paddle": "paddle",
    "shared_ndarray2": "shared_ndarray2",
    "sharedarray": "SharedArray",
    "tensordict": "tensordict",
    "torch": "torch",
}
"""The adapters of libraries that may be missing, and what those are imported as."""

MODULES = ["copy", "numpy_copy", "reference", "stdlib", "torch_cuda", *FRAMEWORKS]
PLACES = [f"sharedtensor_conformance.adapters.{module}" for module in MODULES]


def adapter(module):
    return import_module(f"sharedtensor_conformance.adapters.{module}")


def operations(module):
    place, _, name = adapter(module).conformance_adapter.operations.partition(":")
    return getattr(import_module(place), name)()


@pytest.mark.parametrize("module", [*PLACES, "torch_patches.adapter"])
def test_importing_an_adapter_imports_no_framework(module):
    frameworks = [*FRAMEWORKS.values(), "sharedtensor"]
    program = (
        f"import sys, {module}\nprint(*(n for n in {frameworks} if n in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("module", ["numpy_copy", "reference", "stdlib", *FRAMEWORKS])
def test_process_that_has_imported_what_declares_preload_can_be_forked(module):
    if module in FRAMEWORKS and find_spec(FRAMEWORKS[module]) is None:
        pytest.skip(f"{module} is not installed")
    declared = adapter(module).conformance_adapter
    assert declared.preload
    why = why_not_preloaded(module.replace("_", "-"), declared)
    if "may not rewrite its environment" in why:
        pytest.skip(why)
    assert why == ""


def test_copy_claims_what_the_reference_claims():
    copy, reference = (adapter(m).conformance_adapter for m in ("copy", "reference"))
    assert (copy.claims, copy.dtypes) == (reference.claims, reference.dtypes)


WINDOWS = {
    "step": lambda base: base[1::3],
    "transposed": lambda base: base.reshape(4, 6).T,
    "backwards": lambda base: base[20:3:-2],
    "expanded": lambda base: np.broadcast_to(base[5:7], (3, 2)),
    "no elements": lambda base: base.reshape(4, 6)[:, 2:2],
    "no dimensions": lambda base: base[7:8].reshape(()),
}


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS.keys())
def test_strided_array_is_copied_with_its_strides(window):
    array = window(np.arange(24.0)).view(StridedArray)
    arrived = pickle.loads(pickle.dumps(array))
    assert arrived.tolist() == array.tolist()
    assert (arrived.shape, arrived.strides) == (array.shape, array.strides)
    assert not np.may_share_memory(arrived, array)


def test_stdlib_views_follow_their_storage_into_its_segment():
    ops = operations("stdlib")
    base = ops.make([1, 2, 3, 4], (4,), "int32")
    other = ops.reinterpret(base, "uint8")
    before = ops.address(base)
    message = ops.encode(base)
    ops.write(other, (0,), 9)
    assert ops.values(base) == [9, 2, 3, 4]
    assert ops.address(base) != before
    assert ops.address(ops.decode(message)) == ops.address(base)
