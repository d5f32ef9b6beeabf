"""The table of the benchmark beside other libraries, from results made up here."""

import re
from html import unescape

import pytest
from sharedtensor_bench.results import Result, Results, Subject
from test_benchmark_page import CONFIGURATION, MACHINE
from test_extension import text_of

FD, FS = "file_descriptor", "file_system"
REPEATS = [100.0, 110.0, 120.0, 130.0]
FILE = "docs/reports/peers.json"
PAGES = {
    "docs/conf.py": CONFIGURATION,
    "docs/costs.md": (
        "---\norphan: true\n---\n# Costs\n\n"
        "```{benchmark-peers} reports/peers.json\n```\n"
    ),
}
SUBJECTS = [
    Subject("reference", FD, "0.1.0"),
    Subject("reference", FS, "0.1.0"),
    Subject("paddle", FS, "3.3.1"),
    Subject("mindspore", FD, "2.10.0"),
    Subject("stdlib", "default"),
]
FORK, SPAWN = ("pipe", "fork"), ("pipe", "spawn")
HELD, DICT = "resend-held-one-way", "state-dict"


def result(name, strategy, row, axes, factor=1.0, unit="us", absent=""):
    """Return what took so many times as long as 100 to 130 us, or why it has none."""
    samples = [] if absent else [factor * one for one in REPEATS]
    return Result(name, strategy, row, *axes, unit, samples, [], absent)


def results():
    found = [
        result("reference", FD, HELD, FORK),
        result("reference", FD, HELD, SPAWN, 3.0),
        result("reference", FS, HELD, FORK, 2.0),
        result("paddle", FS, HELD, FORK, 4.0),
        result("mindspore", FD, HELD, FORK, absent="not claimed: fork"),
        result("mindspore", FD, HELD, SPAWN, 2.0),
        result("stdlib", "default", HELD, FORK),
        result("reference", FD, DICT, FORK),
        result("reference", FS, DICT, FORK),
        result("paddle", FS, DICT, FORK, absent="failed: ended <here>"),
        result("mindspore", FD, DICT, SPAWN, absent="not claimed: views"),
        result("stdlib", "default", DICT, FORK, 0.5),
        result("reference", FD, "child-start", ("", "fork")),
        result("mindspore", FD, "child-start", ("", "spawn"), 2.0),
        result("reference", FD, "child-start", ("", "spawn")),
        result("stdlib", "default", "descriptors-sender", ("", "fork"), 0.01, "open"),
        result("reference", FD, "descriptors-sender", ("", "fork"), 0.01, "open"),
    ]
    day = "2026-11-25T08:00:00+00:00"
    return Results(day, MACHINE, {"repeats": 4}, SUBJECTS, found)


@pytest.fixture(scope="module")
def lines(build, tmp_path_factory):
    site = build(tmp_path_factory.mktemp("peers"), PAGES | {FILE: results().as_json()})
    assert site.warnings == ""
    page = site.page("costs.html")
    table = page[page.index('<table class="cost-table"') :]
    return [words_of(line) for line in re.findall(r"<tr>.*?</tr>", table, re.S)]


def words_of(part):
    """Return the words of a line, with a bar between cells and x for times.

    A dash that stands in place of a figure is a plain one here.
    """
    cells = re.findall(r"<t[hd].*?</t[hd]>", part, re.S)
    words = [" ".join(unescape(text_of(cell)).split()) for cell in cells]
    plain = str.maketrans({"\N{MULTIPLICATION SIGN}": "x", "\N{EN DASH}": "-"})
    return " | ".join(words).translate(plain)


def test_each_column_says_what_is_compared(lines):
    head, strategies = lines[:2]
    assert "paddle file_system 3.3.1" in head
    assert "mindspore file_descriptor spawn 2.10.0" in head
    assert head.endswith("| stdlib")
    assert strategies == f"{FD} | {FS}"


def test_cell_is_a_ratio_to_the_same_strategy_or_the_default_one(lines):
    held = next(line for line in lines if "held by the receiver" in line)
    assert held.endswith(
        "115.0 us | 230.0 us | ▾ 0.50x faster | ▴ 1.50x slower"
        " | ≈ 1.00x no clear difference"
    )


def test_cell_without_figures_says_whether_something_failed(lines):
    views = next(line for line in lines if "state_dict" in line)
    assert views.endswith("115.0 us | 115.0 us | fails | - | ▴ 2.00x slower")


def test_start_of_a_child_is_compared_under_its_own_start_method(lines):
    fork, spawn = [line for line in lines if "start of a child" in line]
    assert fork.endswith("message (fork) | 115.0 us | not measured | - | - | -")
    assert spawn.endswith("| 115.0 us | not measured | - | ▾ 0.50x faster | -")


def test_what_is_counted_has_no_ratio(lines):
    assert lines[-1].endswith("| 1.1 | not measured | - | - | 1.1")


def test_failures_are_told_below_the_table(build, tmp_path):
    site = build(tmp_path, PAGES | {FILE: results().as_json()})
    page = site.page("costs.html")
    assert "What fails (1)" in page
    assert "<li>paddle file_system state-dict pipe fork ended &lt;here&gt;</li>" in page


def test_page_without_results_says_so(build, tmp_path):
    site = build(tmp_path, PAGES)
    assert "No other library has been measured yet." in site.page("costs.html")


def test_file_that_holds_no_results_ends_the_build(build, tmp_path):
    from sphinx.errors import ExtensionError

    with pytest.raises(ExtensionError, match=r"peers\.json has no results"):
        build(tmp_path, PAGES | {FILE: "{}"})
