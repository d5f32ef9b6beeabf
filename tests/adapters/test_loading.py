"""An adapter is found by its module's name; what cannot be loaded is one sentence."""

from __future__ import annotations

import os

import pytest
from command import call
from sharedtensor_conformance.adapter_trial import inspection
from sharedtensor_conformance.adapter_trial.inspection import describe
from sharedtensor_conformance.adapters import loader
from sharedtensor_conformance.adapters.loader import (
    SHIPPED,
    LoadingError,
    load_implementation,
)
from sharedtensor_conformance.harness.supervisor import template

ADAPTER = """\
from dataclasses import replace
from sharedtensor_conformance.adapters import numpy_copy

conformance_adapter = other = replace(numpy_copy.conformance_adapter, name="mine")
"""


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


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("plain_name_conformance.py", "plain_name_conformance"),
        ("plain_name_conformance.py", "plain_name_conformance:other"),
        ("their_package/conformance.py", "their_package.conformance"),
    ],
)
def test_adapter_is_found_by_its_module_alone_and_by_an_attribute(folder, file, name):
    write(folder / file, ADAPTER)
    assert load_implementation(name).name == "mine"


@pytest.mark.parametrize("name", ["no_such_module", "no.such.module", "json.no_such"])
def test_name_of_no_adapter_and_of_no_module_is_told_with_what_to_do(name, monkeypatch):
    monkeypatch.setattr(loader, "_entry_points", tuple)  # whatever is installed here
    assert said(name) == (
        f"there is no implementation {name!r}: no adapter and no importable module has "
        f"this name; choose one of {', '.join(SHIPPED)} or mutant:NAME, or give "
        f"package.module[:attribute] and put the folder of the module on PYTHONPATH"
    )


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


def test_attribute_that_is_no_adapter_is_told(folder):
    write(folder / "no_adapter.py", "conformance_adapter = 'a string'\n")
    assert "no_adapter:conformance_adapter is a str, not an Implementation" in said(
        "no_adapter"
    )


# What a module raises


LICENSED = "def check():\n    raise RuntimeError('no licence file')\n\ncheck()\n"
IMPORTS = "import os\n\nimport licensed\n"


def why_not(name: str) -> str:
    """Return why an adapter cannot be loaded, as far as the sentence says it."""
    with pytest.raises(LoadingError) as caught:
        describe(name)
    return str(caught.value).partition(" cannot be loaded: ")[2]


def test_exception_is_told_with_the_line_of_the_adapter_and_what_it_imports(folder):
    write(folder / "licensed.py", LICENSED)
    write(folder / "imports_it.py", IMPORTS)
    place = f"({folder}/imports_it.py, line 3, while importing licensed)"
    assert why_not("imports_it") == f"RuntimeError: no licence file {place}"
    assert said("imports_it").endswith(f": RuntimeError: no licence file {place}")


def test_exception_is_told_with_the_file_as_it_is_named_from_the_current_folder(
    folder, monkeypatch
):
    monkeypatch.chdir(folder)
    write(folder / "licensed.py", LICENSED)
    write(folder / "imports_it.py", IMPORTS)
    assert why_not("imports_it").endswith(
        "(imports_it.py, line 3, while importing licensed)"
    )


def test_exception_below_the_adapter_is_told_with_the_innermost_line(folder):
    write(folder / "licensed.py", LICENSED)
    write(folder / "of_several" / "parts.py", IMPORTS)
    write(folder / "of_several" / "__init__.py", "from of_several import parts\n")
    assert why_not("of_several") == (
        f"RuntimeError: no licence file ({folder}/of_several/parts.py, line 3, while "
        f"importing licensed)"
    )


def test_exception_of_the_package_that_the_adapter_is_in_is_told_with_its_line(folder):
    write(folder / "unlicensed" / "__init__.py", LICENSED)
    write(folder / "unlicensed" / "conformance.py", ADAPTER)
    assert why_not("unlicensed.conformance") == (
        f"RuntimeError: no licence file ({folder}/unlicensed/__init__.py, line 2)"
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        ("raise SystemExit('no licence')", "SystemExit: no licence"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_what_the_adapter_raises_itself_is_told_with_its_line(folder, line, told):
    write(folder / "raises_itself.py", f"import os\n{line}\n")
    assert why_not("raises_itself") == f"{told} ({folder}/raises_itself.py, line 2)"


def test_exception_of_the_operations_is_told_with_their_line(folder):
    operations = (
        "\nclass Operations:\n    def __init__(self):\n        import licensed\n"
    )
    adapter = ADAPTER.replace("name=", "operations='operates:Operations', name=")
    write(folder / "licensed.py", LICENSED)
    write(folder / "operates.py", adapter + operations)
    assert why_not("operates") == (
        f"RuntimeError: no licence file ({folder}/operates.py, line 8, while importing "
        f"licensed)"
    )


def test_attribute_that_is_not_there_has_no_line(folder):
    write(folder / "has_no_adapter.py", "")
    assert why_not("has_no_adapter") == (
        "module 'has_no_adapter' has no attribute 'conformance_adapter'"
    )


# Adapters that load for long

WAITS = "open(__file__ + '.goes_on').close()\n"


@pytest.fixture
def waiting(folder):
    """An adapter that loads until it is told to go on; return its name and a pipe."""
    os.mkfifo(folder / "waits.py.goes_on")
    write(folder / "waits.py", WAITS + ADAPTER)
    return "waits", folder / "waits.py.goes_on"


def test_loading_that_takes_long_is_told_once(waiting, monkeypatch):
    name, pipe = waiting
    told = []

    def tell(sentence: str) -> None:
        told.append(sentence)
        pipe.open("w").close()

    monkeypatch.setattr(inspection, "NOTICE_AFTER", 0.0)
    assert describe(name, 60.0, tell=tell).implementation.name == "mine"
    assert told == ["still loading waits (limit 60 s, --patience)"]


def test_loading_that_is_ended_before_it_takes_long_is_not_told(waiting):
    told = []
    with pytest.raises(LoadingError, match="did not finish loading within 2 s"):
        describe(waiting[0], 2.0, tell=told.append)
    assert told == []


def test_check_has_the_time_limit_of_a_run(waiting, monkeypatch):
    monkeypatch.setattr(inspection, "NOTICE_AFTER", 0.0)
    done = call("check-adapter", "waits", "--patience=2")
    assert done.returncode == 4
    assert done.stderr == (
        "still loading waits (limit 2 s, --patience)\n"
        "shared-tensor-spec: the adapter 'waits' did not finish loading within 2 s: it "
        "printed nothing\n"
    )


@pytest.mark.parametrize("patience", ["0", "soon", "inf"])
def test_time_limit_of_a_check_is_a_positive_number(patience):
    done = call("check-adapter", "reference", f"--patience={patience}")
    assert done.returncode == 4
    assert f"--patience: invalid seconds value: '{patience}'" in done.stderr


def test_time_limit_of_a_check_also_holds_for_the_template(monkeypatch):
    seen = []

    def why_not_preloaded(name, implementation):
        seen.append(implementation.patience)
        return ""

    monkeypatch.setattr(template, "why_not_preloaded", why_not_preloaded)
    assert call("check-adapter", "reference", "--patience=100").returncode == 0
    assert seen == [100.0]
