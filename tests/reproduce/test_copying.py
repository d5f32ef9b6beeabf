"""What a program copies of adapters and of the suite, and how it changes the source."""

from __future__ import annotations

import os

import pytest
from sharedtensor_conformance.reproduce.copying import Copier
from sharedtensor_conformance.reproduce.sources import Unreplayable, read_source

ADAPTERS = "sharedtensor_conformance.adapters"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a function that writes an adapter in a package, and copies from it."""
    monkeypatch.syspath_prepend(tmp_path)
    inside = tmp_path / f"pkg{os.urandom(4).hex()}"
    inside.mkdir()
    (inside / "__init__.py").write_text("raise SystemExit('it was imported')")
    (inside / "other.py").write_text("def make(): return 1\n")

    def copied(text, name="Operations", provided=(), mentioned=()):
        (inside / "adapter.py").write_text(text)
        copier = Copier(f"{inside.name}.adapter", provided, set(mentioned))
        copier.define(f"{inside.name}.adapter", name)
        return copier, "\n".join(copier.parts.values())

    copied.name = inside.name
    yield copied
    read_source.cache_clear()


def test_methods_that_nothing_mentions_are_left_out(package):
    text = '''
class Base:
    def make(self): return self.helper()
    def helper(self): return 1
    def unused(self): return 2

class Operations(Base):
    """It makes."""
    def __init__(self): self.x = 1
    @property
    def read(self): return 3
'''
    copier, _ = package(text, mentioned=["make"])
    _, copied = package(text, mentioned=copier.mentioned)
    scope = {}
    exec(copied, scope)
    made = scope["Operations"]()
    assert made.make() == 1
    assert not hasattr(made, "unused")
    assert not hasattr(made, "read")


def test_annotations_are_left_out_and_fields_of_dataclasses_kept(package):
    text = """
from dataclasses import dataclass
from typing import Any, ClassVar

@dataclass(frozen=True)
class Row:
    size: int
    found: ClassVar[dict[str, Any]] = {}

class Operations:
    rows: ClassVar[list[Row]] = [Row(3)]
    def __call__(self, one: Any, *more: Any, key: Any = None) -> Any:
        local: Any = one
        return local
"""
    copier, copied = package(text)
    assert "size: int" in copied
    assert "def __call__(self, one, *more, key=None):" in copied
    assert "rows = [Row(3)]" in copied
    assert "local = one" in copied
    assert "Any" not in copied.partition("class Operations")[2]
    assert "from dataclasses import dataclass" in copier.imports


def test_definitions_come_after_those_that_they_use(package):
    text = """
import atexit

def use(): return CONSTANT + later()
CONSTANT = len([each for each in "abc"])
def later(): return 1
atexit.register(later)
class Operations:
    used = use()
"""
    copier, copied = package(text)
    assert copied.count("CONSTANT = ") == 1
    assert copied.index("CONSTANT = ") < copied.index("class Operations")
    assert "def later():\n    return 1\natexit.register(later)" in copied
    assert copier.imports == {"import atexit"}


def test_other_modules_of_the_package_are_imported_and_not_copied(package):
    text = """
from .other import make
class Operations:
    make = make
    def __call__(self):
        from . import other as here
        return here
"""
    copier, copied = package(text)
    assert f"        from {package.name} import other as here" in copied
    assert copier.imports == {f"from {package.name}.other import make"}
    assert "return 1" not in copied


def test_modules_of_the_suite_become_objects_with_what_is_mentioned(package):
    text = f"""
from importlib import import_module
from {ADAPTERS} import torch_kinds as kinds
class Operations:
    def __call__(self): return kinds.describe(import_module("{ADAPTERS}.torch_kinds"))
"""
    _, copied = package(text, mentioned=["describe"])
    assert "return describe(torch_kinds)" in copied
    assert "\ntorch_kinds = SimpleNamespace(" in copied
    assert "sharedtensor_conformance" not in copied


def test_names_that_are_taken_are_changed(package):
    text = "def make(): return make\nclass Operations:\n    made = make()\n"
    copier, copied = package(text, provided=["make"])
    assert "made = make()" in copied  # the program has a `make` of its own
    copier = Copier(copier.adapter, (), set())
    copier.names["another", "make"] = "make"
    copier.define(copier.adapter, "Operations")
    copied = "\n".join(copier.parts.values())
    assert "def adapter_make():\n    return adapter_make" in copied
    assert "made = adapter_make()" in copied


def test_name_without_source_is_told(package):
    with pytest.raises(Unreplayable, match="no source is found of Operations in pkg"):
        package("X = 1\n")
    with pytest.raises(Unreplayable, match="has no readable source"):
        read_source(f"{package.name}.nothing")
