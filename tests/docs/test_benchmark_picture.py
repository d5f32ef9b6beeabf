"""The picture of the benchmark, beside torch and over the floor, and its data."""

import csv
import json
import re
from html import unescape

import pytest
from sharedtensor_bench.results import Result, Results, Spread, Subject
from test_benchmark_page import CONFIGURATION, MACHINE
from test_extension import text_of

PAGE = "---\norphan: true\n---\n# Costs\n\n```{benchmark} beside\n```\n\n"
DATA = "```{benchmark} data\n```\n"
PAGES = {"docs/conf.py": CONFIGURATION, "docs/costs.md": PAGE + DATA}
FD, FS = "file_descriptor", "file_system"
QUIET = MACHINE | {"load": 0.1}
REPEATS = [100.0, 110.0, 120.0, 130.0]


def pair(strategy, times, row="resend-held-one-way", axes=("pipe", "fork"), **more):
    """Return what the reference took, and torch: so many times as long."""
    others = [REPEATS[0] * one for one in times]
    floor = [one / 10 for one in REPEATS]
    unit = more.get("unit", "us")
    return [
        Result("reference", strategy, row, *axes, unit, REPEATS, floor),
        Result("torch", strategy, row, *axes, unit, others, floor),
    ]


def run(*found, started="2026-11-21T06:00:00+00:00", scaling=()):
    subjects = [Subject("reference", FD, "0.1.0"), Subject("torch", FD, "2.13.0")]
    return Results(started, QUIET, {"repeats": 4}, subjects, list(found), list(scaling))


FASTER = pair(FD, [2.0, 2.2, 2.4, 2.6])
SLOWER = pair(FS, [0.5, 0.55, 0.6, 0.65])
UNCLEAR = pair(FD, [0.95, 1.04, 1.4, 1.5], axes=("pipe", "spawn"))
CHILD = pair(FS, [0.8, 0.88, 0.96, 1.04], "child-start", ("", "spawn"))
ALONE = Result(
    "reference", FD, "first-share-1MiB", "", "", "us", REPEATS, [9.0, 9.0, 9.0, 9.0]
)
COUNTED = [
    Result(name, FD, "descriptors-sender", "", "fork", "descriptors", [1.0, 1.0])
    for name in ("reference", "torch")
]
ABSENT = Result("reference", FD, "state-dict", "pipe", "fork", "us", absent="not here")
POINT = {"what": "size", "to": 4096, "implementation": "reference", "strategy": FD}
POINT |= {"samples": [17.0, 18.0], "median": 17.5, "absent": ""}


ONE = "1\N{MULTIPLICATION SIGN}"


def words_of(part):
    """Return the words of a part of the page, with a plain x for times."""
    words = unescape(text_of(part)).replace("\N{MULTIPLICATION SIGN}", "x")
    return " ".join(words.split())


@pytest.fixture(scope="module")
def shown(build, tmp_path_factory):
    """A site with results of every kind, in two files of two runs."""
    early = run(
        *pair(FD, [0.1, 0.1, 0.1, 0.1]), ALONE, started="2026-11-20T00:00:00+00:00"
    )
    late = run(*FASTER, *SLOWER, *UNCLEAR, *CHILD, *COUNTED, ABSENT, scaling=[POINT])
    files = {
        "docs/reports/bench/later.json": early.as_json(),
        "docs/reports/bench/earlier.json": late.as_json(),
    }
    return build(tmp_path_factory.mktemp("costs"), PAGES | files)


@pytest.fixture(scope="module")
def picture(shown):
    page = shown.page("costs.html")
    assert shown.warnings == ""
    return page[page.index('<figure class="costs"') : page.index("</figure>")]


def line(picture, anchor):
    """Return the line with this anchor."""
    return re.search(rf'<li class="cost-line" id="{anchor}">.*?</li>', picture, re.S)[0]


HELD = "cost-resend-held-one-way-pipe-fork-"


@pytest.mark.parametrize(
    ("anchor", "words"),
    [
        (f"{HELD}file-descriptor", "▾ faster, 0.50x of torch's time, quartiles"),
        (f"{HELD}file-system", "▴ slower, 2.00x of torch's time, quartiles"),
        (
            "cost-resend-held-one-way-pipe-spawn-file-descriptor",
            "≈ no clear difference, 0.96x of torch's time, quartiles 0.86 to 1.05",
        ),
        ("cost-child-start-spawn-file-system", "▴ slower, 1.25x of torch's time"),
        ("cost-first-share-1MiB-file-descriptor", "torch was not measured"),
        ("cost-first-share-1MiB-file-descriptor", "12.8x of the floor"),
        ("cost-state-dict-pipe-fork-file-descriptor", "not here"),
        (
            "cost-descriptors-sender-fork-file-descriptor",
            "1.0 descriptors; torch: 1.0 descriptors",
        ),
    ],
)
def test_line_says_in_words_what_its_bar_shows(picture, anchor, words):
    assert words in words_of(line(picture, anchor))


def test_bars_are_hidden_from_those_who_hear_the_page(picture):
    bars = re.findall(r'<span class="cost-bar[^>]*>', picture)
    assert bars
    assert all('aria-hidden="true"' in bar for bar in bars)


def test_what_is_slower_is_counted_and_named_with_a_link(picture):
    counts = picture[: picture.index("<details")]
    assert re.findall(r'class="(\w+)" role="listitem"', counts) == [
        *("faster", "unclear", "slower")
    ]
    named = picture[picture.index("<details") : picture.index("</details>")]
    assert "Where the reference is slower (2)" in named
    links = re.findall(r'href="#([^"]+)"', named)
    assert links == [f"{HELD}file-system", "cost-child-start-spawn-file-system"]
    assert all(line(picture, anchor) for anchor in links)


def test_rows_are_grouped_by_what_a_user_does(picture):
    assert re.findall(r"<h3>(.*?)</h3>", picture) == [
        "Send a tensor again",
        "Send many tensors at once",
        "Share a tensor for the first time",
        "Start a child",
        "Other costs",
    ]


def test_only_unusual_circumstances_are_folded_and_then_counted(picture):
    folded = re.findall(r'<details class="cost-others">.*?</details>', picture, re.S)
    assert len(folded) == 1
    assert 'id="cost-resend-held-one-way-pipe-spawn' in folded[0]
    assert "≈ 1 no clear difference" in words_of(folded[0])


def test_machine_and_date_of_each_run_are_beside_the_picture(picture):
    words = text_of(picture)
    assert "2026-11-21: reference 0.1.0 and torch 2.13.0 on A processor" in words
    assert "2026-11-20: reference 0.1.0" in words


def test_bar_goes_from_one_to_the_median_on_a_logarithmic_axis(build):
    from benchmark.axis import Axis

    axis = Axis.over([Spread(0.25, 0.5, 2.0)], base=2)
    assert axis.ticks == [
        *((0.0, "1/4"), (pytest.approx(100 / 3), "1/2")),
        *((pytest.approx(200 / 3), ONE), (pytest.approx(100.0), "2")),
    ]
    assert axis.bar(Spread(0.25, 0.5, 2.0)) == {
        "left": pytest.approx(100 / 3),
        "width": pytest.approx(100 / 3),
        "low": 0.0,
        "spread": pytest.approx(100.0),
        "middle": pytest.approx(100 / 3),
    }
    assert "var(--c-one)) 66.67% 0 / 2px" in axis.grid


def test_one_is_on_an_axis_of_ratios_that_are_all_greater(build):
    from benchmark.axis import Axis

    axis = Axis.over([Spread(30.0, 40.0, 500.0)], base=10)
    assert [label for _, label in axis.ticks] == [ONE, "10", "100"]
    assert axis.place(1) == 0


def test_rows_are_there_as_csv(shown):
    rows = list(csv.DictReader(shown.page("benchmark.csv").splitlines()))
    assert len(rows) == 14
    (found,) = (
        row
        for row in rows
        if (row["implementation"], row["strategy"]) == ("reference", FS)
        and row["row"] == "resend-held-one-way"
    )
    assert found["task"] == "send a tensor again"
    assert float(found["median"]) == 115.0
    assert float(found["over_floor_median"]) == 10.0
    assert float(found["of_torch_median"]) == 2.0
    assert (found["channel"], found["start_method"]) == ("pipe", "fork")
    absent = [row for row in rows if row["absent"]]
    assert [(row["row"], row["median"]) for row in absent] == [("state-dict", "")]


def test_everything_is_there_as_json(shown):
    data = json.loads(shown.page("benchmark.json"))
    assert [one["started"][:10] for one in data["runs"]] == ["2026-11-21", "2026-11-20"]
    assert data["runs"][0]["machine"]["processor"] == "A processor"
    assert len(data["rows"]) == 14
    assert data["rows"][0]["samples"] == REPEATS
    assert data["scaling"][0]["median"] == 17.5


def test_page_links_to_data_that_exists(shown):
    links = re.findall(r'href="(benchmark[^"]*)" download', shown.page("costs.html"))
    assert len(links) == 3
    assert all((shown.folder / link).stat().st_size for link in links)


def test_without_results_no_data_is_written(site_of):
    site = site_of(PAGES)
    assert "download" not in site.page("costs.html")
    assert list(site.folder.glob("benchmark*.*")) == []
