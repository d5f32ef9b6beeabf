"""The parts of `reproduce`: operations as source, loops, and the end of programs."""

from __future__ import annotations

import os
import time

import pytest
from sharedtensor_conformance.adapters import numpy_copy
from sharedtensor_conformance.reproduce.events import references_in, source_of
from sharedtensor_conformance.reproduce.loops import Line, Loop, Turn, with_loops
from sharedtensor_conformance.reproduce.operations import Operations
from sharedtensor_conformance.reproduce.program import quoted
from sharedtensor_conformance.reproduce.running import execute
from sharedtensor_conformance.reproduce.source import Untranslatable, read_module

ADAPTERS = "sharedtensor_conformance.adapters"
LAYOUT = "Layout(name='slice', offset=5, shape=(7,), strides=(1,))"


@pytest.fixture
def torch():
    """The operations of PyTorch, which need not be installed for that."""
    return Operations(f"{ADAPTERS}.torch:TorchOperations")


@pytest.mark.parametrize(
    ("operation", "written"),
    [
        (("share", "t"), "t.share_memory_()"),
        (
            ("make", "[1, 2]", "(2,)", "'int32'"),
            "torch.tensor([1, 2], dtype=torch.int32)",
        ),
        (
            ("make", "[1, 2]", "(1, 2)", "'bool'"),
            "torch.tensor([1, 2], dtype=torch.bool).reshape((1, 2))",
        ),
        (("view", "t", LAYOUT), "t.as_strided((7,), (1,), t.storage_offset() + 5)"),
        (
            ("write", "t", "(1,)", "5"),
            "t.detach()[1] = torch.tensor(5, dtype=t.dtype)",
        ),
        (("encode", "t"), "t"),
        (("release", "t"), ""),
    ],
)
def test_operation_of_one_line_is_written_in_its_place(torch, operation, written):
    assert torch.call_source(*operation) == written
    assert not torch.definitions


def test_operation_of_more_lines_becomes_a_function(torch):
    assert torch.call_source("make_module", "{'w': [1]}") == "make_module({'w': [1]})"
    (function,) = torch.definitions.values()
    assert function.startswith("def make_module(parameters):")
    assert "self" not in function
    assert "torch.nn.Parameter(data)" in function


def test_preparing_a_process_is_written_line_by_line(torch):
    lines = ["torch.set_num_threads(1)", "mp.set_sharing_strategy('file_system')"]
    assert torch.preparation("file_system") == lines
    assert torch.drop_in() == "torch.multiprocessing"


IN_CLASS = """
{}

class Operations:
    multiprocessing = {}
"""
IN_INITIALISER = """
class Operations:
    def __init__(self):
        {}
        self.multiprocessing = {}
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a function that writes the adapter of a package and reads it."""
    monkeypatch.syspath_prepend(tmp_path)
    inside = tmp_path / f"pkg{os.urandom(4).hex()}"
    inside.mkdir()
    (inside / "drop_in.py").write_text("raise SystemExit")
    (inside / "__init__.py").write_text("from . import drop_in as the_module\n")

    def operations(form, line, value):
        line = line.replace("PKG", inside.name)
        value = value.replace("PKG", inside.name)
        (inside / "conformance.py").write_text(form.format(line, value))
        return Operations(f"{inside.name}.conformance:Operations")

    operations.name = inside.name
    yield operations
    read_module.cache_clear()


@pytest.mark.parametrize("form", [IN_CLASS, IN_INITIALISER])
@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("import PKG.drop_in as mp", "mp"),
        ("import PKG.drop_in", "PKG.drop_in"),
        ("from . import drop_in", "drop_in"),
        ("from PKG import drop_in as m", "m"),
        ("from PKG import the_module", "the_module"),
        ("from importlib import import_module", "import_module('PKG.drop_in')"),
    ],
)
def test_drop_in_is_found_however_it_is_imported(package, form, line, value):
    found = package(form, line, value)
    assert found.drop_in() == f"{package.name}.drop_in"
    assert found.setup == []


def test_what_is_no_module_is_not_taken_for_the_drop_in(package):
    found = package(IN_CLASS, "from os import sep", "sep")
    with pytest.raises(Untranslatable, match="is set to `sep`, which no import"):
        found.drop_in()


def test_imports_of_a_package_are_written_for_a_program_outside_of_it(package):
    text = (
        "\n    def make(self, values, shape, dtype):\n        return make_it(values)\n"
    )
    found = package(IN_CLASS + text, "from .drop_in import make_it", "None")
    assert found.call_source("make", "[1]", "(1,)", "'int32'") == "make_it([1])"
    assert found.imports == {"make_it": f"from {package.name}.drop_in import make_it"}


def test_classes_that_an_operation_uses_come_before_those_that_use_them():
    stdlib = Operations(f"{ADAPTERS}.stdlib:StdlibOperations")
    stdlib.call_source("make", "[1]", "(1,)", "'int32'")
    order = list(stdlib.definitions)
    assert order.index("Storage") < order.index("StdlibTensor") < order.index("make")
    scope = {"__name__": __name__}  # dataclasses look the module up
    source = "\n".join([*stdlib.imports.values(), *stdlib.definitions.values()])
    exec(compile(source, "program.py", "exec", dont_inherit=True), scope)
    assert scope["make"]([3, 4], (2,), "int32").array.tolist() == [3, 4]


def test_module_is_read_and_not_imported(tmp_path, monkeypatch):
    (tmp_path / "dangerous").mkdir()
    (tmp_path / "dangerous" / "__init__.py").write_text("raise SystemExit")
    (tmp_path / "dangerous" / "adapter.py").write_text("raise SystemExit\nX = 1")
    monkeypatch.syspath_prepend(tmp_path)
    assert set(read_module("dangerous.adapter").definitions) == {"X"}
    with pytest.raises(Untranslatable, match="has no readable source"):
        read_module("dangerous.nothing")


# Values and loops


def test_recorded_value_becomes_its_source():
    data = {"dict": [["x", {"tuple": [{"reference": "3"}]}], ["y", [1.5, None]]]}
    written = source_of(data, lambda found: f"t{found['reference']}")
    assert written == "{'x': (t3,), 'y': [1.5, None]}"
    assert list(references_in(data)) == [("3", "['x'][0]")]


def test_not_a_number_and_infinity_become_source():
    written = source_of([float("nan"), float("-inf")], repr)
    assert written == "[float('nan'), float('-inf')]"


def test_steps_that_differ_in_numbers_alone_are_a_loop():
    def once(number):
        return [
            Line(f"t = make([{number}, 2])"),
            Turn("peer", ("a = q.get()",)),
            Turn("peer", ("del a",)),
        ]

    steps = [Line("begin()"), *once(1), *once(2), *once(3), Line("end()")]
    joined = (Line("t = make([1, 2])"), Turn("peer", ("a = q.get()", "del a")))
    assert with_loops(steps) == [Line("begin()"), Loop(3, joined), Line("end()")]


def test_names_with_numbers_are_no_numbers():
    steps = [Line("del t_1"), Line("del t_2"), Line("del t_3")]
    assert with_loops(steps) == steps


def test_quotes_change_only_where_they_can():
    code = "a = ['x', 'it\"s', \"it's\", 'one' 'two']\n"
    assert quoted(code) == 'a = ["x", \'it"s\', "it\'s", "one" "two"]\n'


# Execution


def test_nothing_is_left_of_a_program_that_takes_too_long(tmp_path):
    (tmp_path / "pid").touch()
    program = (
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "print('it waits', flush=True)\n"
        "time.sleep(1000)\n"
    )
    began = time.monotonic()
    shown = execute(program, numpy_copy.conformance_adapter, 5.0)
    assert (shown.status, shown.output) == (None, "it waits\n")
    assert time.monotonic() - began < 60
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
