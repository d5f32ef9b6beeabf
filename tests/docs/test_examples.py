"""The example of a clause is the simplest of its tests, as its source has it."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_project
from command import call
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.definitions import Place
from sharedtensor_conformance.evidence import Sources
from sharedtensor_conformance.examples import MAX_LINES, read_examples

CHAPTERS = Path("conformance/sharedtensor_conformance/chapters")
TINY = (CHAPTERS / "test_tiny.py").as_posix()
SHARED_STEPS = (CHAPTERS / "shared_steps.py").as_posix()

HEAD = """\
from sharedtensor_conformance.chapters.shared_steps import each_sees
from sharedtensor_conformance.chapters.search import search
from sharedtensor_conformance.harness import check, clause

"""
OTHERS = {
    SHARED_STEPS: "def first():\n    pass\n\n\ndef each_sees(tensors):\n    pass\n",
    (CHAPTERS / "search.py").as_posix(): "def search():\n    pass\n",
}


def example(tmp_path, text):
    """Return the example for TINY-1 of a chapter."""
    tiny_project.write_project(tmp_path, {**OTHERS, TINY: HEAD + text})
    return read_examples(Sources.of_checkout(tmp_path)).get("TINY-1")


def a_test(name, *lines, arguments="owner", clause="TINY-1"):
    body = "".join(f"    {line}\n" for line in lines)
    head = f'@clause("{clause}")\ndef test_{name}({arguments}):\n'
    return f'{head}    """It is {name}."""\n{body}\n\n'


WRITE = ("tensor = owner.make([1])", "tensor.write(0, 2)")


def test_steps_are_the_lines_of_the_test(tmp_path):
    found = example(tmp_path, a_test("plain", *WRITE, 'check(tensor, "it is")  # so'))
    assert found.summary == "It is plain."
    assert found.steps.splitlines() == [*WRITE, 'check(tensor, "it is")  # so']
    assert found.calls == ()
    assert found.test == Place("test_plain", TINY, 6)


ROUND = ("for n in range(3):", "    owner.make([n])")
SEARCHED = ("search()",)


@pytest.mark.parametrize(
    ("others", "chosen"),
    [
        ([a_test("long", *WRITE, *WRITE)], "plain"),
        ([a_test("short", WRITE[0])], "short"),
        ([a_test("loop", *ROUND)], "plain"),
        ([a_test("searched", *SEARCHED)], "plain"),
        ([a_test("fixture", "histories()", arguments="histories")], "plain"),
        (
            [a_test("helped", "help()"), "def help():\n    a\n    b\n    c\n\n\n"],
            "plain",
        ),
        ([a_test("alike", *WRITE)], "plain"),
        ([a_test("elsewhere", WRITE[0], clause="TINY-2")], "plain"),
    ],
)
def test_the_simplest_test_is_chosen(tmp_path, others, chosen):
    found = example(tmp_path, a_test("plain", *WRITE) + "".join(others))
    assert found.test.name == f"test_{chosen}"


HELPERS = """\
TIMES = 3


def twice(owner):
    once(owner)
    once(owner)


@decorated
def once(owner):
    \"\"\"Make it.\"\"\"
    return owner.make([TIMES])


def unused():
    pass


"""


def test_what_the_test_needs_of_its_chapter_is_shown(tmp_path):
    found = example(tmp_path, HELPERS + a_test("plain", "twice(owner)"))
    assert found.steps == (
        "twice(owner)\n\n"
        "TIMES = 3\n\n"
        "def twice(owner):\n    once(owner)\n    once(owner)\n\n"
        'def once(owner):\n    """Make it."""\n    return owner.make([TIMES])'
    )
    assert found.calls == ()


def test_what_is_too_long_or_elsewhere_is_a_link(tmp_path):
    long = "def long():\n" + "    pass\n" * MAX_LINES + "\n\n"
    found = example(tmp_path, long + a_test("plain", "long()", "each_sees([])"))
    assert found.steps.splitlines() == ["long()", "each_sees([])"]
    assert found.calls == (Place("long", TINY, 5), Place("each_sees", SHARED_STEPS, 5))


def test_every_clause_has_an_example_of_some_lines():
    found = read_examples(Sources.installed())
    assert set(found) == set(load_clauses())
    for id, one in found.items():
        assert one.summary, id
        assert 0 < len(one.steps.splitlines()) <= 2 * MAX_LINES, id


def test_the_example_stands_with_its_clause(site_of):
    files = {**OTHERS, TINY: HEAD + a_test("plain", *WRITE, "each_sees([tensor])")}
    files[TINY] += a_test("empty", clause="TINY-2")
    site = site_of(files)
    assert site.warnings == ""
    first, second = (site.page(f"TINY-{n}.html") for n in (1, 2))
    assert "<p>It is plain.</p>" in first
    assert "tensor" in first
    assert f'href="source/{TINY}.html#L6"' in first
    assert f'href="source/{SHARED_STEPS}.html#L5"' in first
    assert "It is empty." in second
    assert "each_sees" in site.page(f"source/{SHARED_STEPS}.html")


def test_clause_without_a_test_has_no_example(site_of):
    site = site_of({TINY: HEAD})
    for page in map(site.page, ("TINY-1.html", "TINY-2.html")):
        assert page.count("no test cites this clause") == 2


def test_the_command_prints_the_example_where_it_is_asked_for():
    printed = call("clauses", "SHARE-1", "--example").stdout
    assert "  example conformance/sharedtensor_conformance/chapters/test_sh" in printed
    assert "\n    tensor.write(1, 40)\n" in printed
