"""Mutants say what they replace, and the reference has it."""

import subprocess
import sys

import pytest
import sharedtensor
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.mutants import registry
from sharedtensor_conformance.mutants.registry import UnknownTarget, catalogue, locate


@pytest.mark.parametrize("mutant", catalogue(), ids=lambda mutant: mutant.name)
def test_mutant_names_clauses_and_what_it_replaces(mutant):
    assert set(mutant.clauses) <= set(load_clauses())
    assert mutant.sentence.endswith(".")
    assert mutant.replaces
    for target in mutant.replaces:
        holder, attribute = locate(target)
        assert hasattr(holder, attribute)


def test_mutant_without_a_target_is_refused():
    with pytest.raises(TypeError, match="replaces"):
        registry.mutant("without_a_target", "SHARE-1")
    with pytest.raises(ValueError, match="replaces nothing"):
        registry.mutant("without_a_target", "SHARE-1", replaces=())


def test_two_mutants_of_one_name_are_refused():
    (first, *_) = catalogue()
    with pytest.raises(ValueError, match="two mutants"):
        registry.mutant(first.name, "SHARE-1", replaces="memory.move")(lambda _: None)


@pytest.mark.parametrize("target", ["protocol.no_step", "no_module.x", "tensors.No.x"])
def test_target_that_is_not_there_is_refused(target):
    with pytest.raises(UnknownTarget, match=target):
        locate(target)


def test_target_in_a_class_is_found():
    holder, attribute = locate("tensors.Tensor.clone")
    assert (holder, attribute) == (sharedtensor.Tensor, "clone")


def test_replaced_function_is_gone_everywhere_and_a_lack_is_a_lack():
    program = (
        "from sharedtensor_conformance.mutants import registry\n"
        "registry.apply('receiver_says_private'); registry.apply('lacks_a_name')\n"
        "import sharedtensor, sharedtensor.multiprocessing as mp\n"
        "tensor = sharedtensor.zeros(1).share_memory_()\n"
        "print(tensor.is_shared(), hasattr(mp, 'Barrier'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert done.stdout.split() == [b"True", b"False"]
