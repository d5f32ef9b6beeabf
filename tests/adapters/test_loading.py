"""An adapter is found by its module's name; what cannot be loaded is one sentence."""

from __future__ import annotations

import os

import pytest
from command import call_outside
from sharedtensor_conformance.adapters.loader import (
    SHIPPED,
    LoadingError,
    load_implementation,
)

ADAPTER = """\
from dataclasses import replace
from sharedtensor_conformance.adapters import numpy_copy

conformance_adapter = other = replace(numpy_copy.conformance_adapter, name="mine")
"""

BENCH = ("bench", "--rows=descriptors-sender", "--channel=pipe", "--repeats=1")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of adapters that is on the path, here and in other processes."""
    path = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def write(file, source: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(source)


def said(name: str) -> str:
    """Return the sentence about an adapter that cannot be loaded."""
    with pytest.raises(LoadingError) as caught:
        load_implementation(name)
    return str(caught.value)


# Names


def test_module_without_an_attribute_is_an_adapter(folder):
    write(folder / "plain_name_conformance.py", ADAPTER)
    assert load_implementation("plain_name_conformance").name == "mine"
    assert load_implementation("plain_name_conformance:other").name == "mine"


def test_module_of_a_package_without_an_attribute_is_an_adapter(folder):
    write(folder / "their_package" / "conformance.py", ADAPTER)
    assert load_implementation("their_package.conformance").name == "mine"


@pytest.mark.parametrize("command", [["check-adapter"], [*BENCH, "--impl"]])
def test_commands_take_a_module_without_an_attribute(folder, command):
    write(folder / "plain_name_conformance.py", ADAPTER)
    done = call_outside(*command, "plain_name_conformance")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["no_such_module", "no.such.module", "json.no_such"])
def test_name_of_no_adapter_and_of_no_module_is_told_with_what_to_do(name):
    assert said(name) == (
        f"there is no implementation {name!r}: no adapter and no importable module has "
        f"this name; choose one of {', '.join(SHIPPED)} or mutant:NAME, or give "
        f"package.module[:attribute] and put the folder of the module on PYTHONPATH"
    )


@pytest.mark.parametrize("command", [["check-adapter"], ["bench", "--impl"]])
def test_commands_tell_the_name_of_no_adapter_in_a_sentence(command):
    done = call_outside(*command, "no_such_module")
    assert done.returncode == 4
    assert "there is no implementation 'no_such_module': no adapter" in done.stderr
    assert "put the folder of the module on PYTHONPATH\n" in done.stderr


@pytest.mark.parametrize(
    ("name", "meant"), [("refrence", "reference"), ("numpy_copy", "numpy-copy")]
)
def test_near_miss_is_told_what_was_meant(name, meant):
    assert said(name).startswith(
        f"there is no implementation {name!r}: did you mean {meant!r}? no adapter"
    )


def test_module_that_is_named_like_an_adapter_is_no_near_miss(folder):
    write(folder / "refrence.py", ADAPTER)
    assert load_implementation("refrence").name == "mine"


def test_module_that_an_adapter_misses_is_not_taken_for_its_own(folder):
    write(folder / "misses_another.py", "import no_such_module\n")
    assert "cannot be loaded: No module named 'no_such_module'" in said(
        "misses_another"
    )


def test_module_with_an_attribute_that_is_not_found_is_told_where_it_has_to_be():
    assert said("no_such_module:adapter") == (
        "the adapter 'no_such_module:adapter' cannot be loaded: No module named "
        "'no_such_module'; put the folder of the module on PYTHONPATH"
    )


@pytest.mark.parametrize(
    ("name", "example"),
    [
        ("mine.py", "mine:conformance_adapter"),
        ("tests/mine.py", "mine:conformance_adapter"),
        ("mine.py:other", "mine:other"),
        ("my-own.py", "mypkg_conformance:conformance_adapter"),
    ],
)
def test_file_in_place_of_its_module_is_told_what_to_give(name, example):
    assert said(name) == (
        f"{name!r} names a file: give the module and not the file, for example "
        f"{example}, and put the folder of the module on PYTHONPATH"
    )
