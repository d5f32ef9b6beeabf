"""The figures of the benchmark on the site, from results made up here."""

import re
from html import unescape

import pytest
import tiny_project

FD, FS = "file_descriptor", "file_system"
FORK, SPAWN = ("pipe", "fork"), ("pipe", "spawn")
HELD, DICT, CHILD = "resend-held-one-way", "state-dict", "child-start"
REPEATS = [100.0, 110.0, 120.0, 130.0]
TASKS = {CHILD: "start a child", DICT: "send many", HELD: "send again"}


def result(name, strategy, row, axes, factor=1.0, unit="us", absent=""):
    """Return what took so many times as long as 100 to 130 us, or why it has none."""
    axes = dict(zip(("channel", "start_method"), axes, strict=True))
    samples = [] if absent else [factor * one for one in REPEATS]
    floor = [10.0] * 4 if unit == "us" and not absent else []
    said = {"task": TASKS.get(row, "other"), "meaning": f"a {row}", "unit": unit}
    found = {"implementation": name, "strategy": strategy, "row": row, **axes, **said}
    return found | {"samples": samples, "floor": floor, "absent": absent}


def run(*results, subjects=(), load=0.1, started="2026-11-21T06:00:00+00:00"):
    machine = {"processor": "A processor", "cores": 2, "kernel": "Linux 6"}
    machine |= {"python": "3.11.7", "load": load}
    machine |= {"wake_up": {"mode": "slow", "median_us": 61.0}}
    return {
        "started": started,
        "machine": machine,
        "options": {"repeats": 4},
        "implementations": [
            {"implementation": name, "strategy": strategy, "version": version}
            for name, strategy, version in subjects
        ],
        "results": list(results),
    }


def beside(strategy, row, axes, factor, **more):
    """Return the results of the reference and of torch, which takes that many times."""
    return [
        result("reference", strategy, row, axes, **more),
        result("torch", strategy, row, axes, factor, **more),
    ]


@pytest.fixture
def words_of(monkeypatch):
    """Return the lines of a template by records, with a bar between cells."""
    pytest.importorskip("sphinx", reason="its nodes show what templates make")
    monkeypatch.syspath_prepend(tiny_project.EXTENSIONS)
    from clauses.rendering import written
    from records import costs

    prepare = {"costs": costs.prepared, "cost-peers": costs.prepared_peers}

    def lines(template, **records):
        content = {"records": records, "record": next(iter(records.values()))}
        content |= prepare[template](content)
        page = written(f"{template}.html", files=(), **content)
        page = re.sub(r"</t[hd]>\s*", " | ", page.replace("</tr>", "<tr>"))
        parts = re.split(r"<tr|<p |<li>|<span class=\"\w+\" role", page)
        return [in_words(part) for part in parts]

    return lines


def in_words(part):
    plain = str.maketrans({"\N{MULTIPLICATION SIGN}": "x", "\N{EN DASH}": "-"})
    text = re.sub(r"<[^>]*>|^[^<]*?>", " ", part)
    return " ".join(unescape(text).split()).translate(plain)


EARLY = run(
    *beside(FD, HELD, FORK, 0.1),
    result("reference", FD, "first-share", ("", "")),
    started="2026-11-20T00:00:00+00:00",
)
LATE = run(
    *beside(FD, HELD, FORK, 2.0),
    *beside(FS, HELD, FORK, 0.5),
    result("reference", FD, HELD, SPAWN),
    result("torch", FD, HELD, SPAWN) | {"samples": [95.0, 104.0, 140.0, 150.0]},
    result("reference", FS, HELD, SPAWN),
    result("torch", FS, HELD, SPAWN) | {"samples": [105.0, 100.0, 100.0, 150.0]},
    *beside(FS, CHILD, ("", "spawn"), 0.8),
    *beside(FD, "descriptors", ("", "fork"), 0.01, unit="descriptors"),
    result("reference", FD, DICT, FORK, absent="not here"),
    subjects=[("reference", FD, "0.1.0"), ("torch", FD, "2.13.0")],
)


@pytest.mark.parametrize(
    "words",
    [
        "A resend-held-one-way | file_descriptor | 115.0 us | 230.0 us | "
        "▾ 0.50x 0.50x to 0.50x faster | | 11.5x 10.8x to 12.2x |",
        "A resend-held-one-way | file_system | 115.0 us | 57.5 us | ▴ 2.00x 2.00x to",
        "A resend-held-one-way | file_descriptor, pipe, spawn | 115.0 us | 122.0 us | "
        "≈ 0.96x 0.86x to 1.05x no clear difference |",
        "file_system, pipe, spawn | 115.0 us | 102.5 us | ≈ 1.03x 0.93x to 1.12x no",
        "A child-start | file_system, spawn | 115.0 us | 92.0 us | ▴ 1.25x",
        "A first-share | file_descriptor | 115.0 us | not measured | | | 11.5x",
        "A state-dict | file_descriptor | not here | not measured | | | |",
        "A descriptors | file_descriptor | 115.0 | 1.1 | | | |",
        "2 slower",
        "A child-start, file_system, spawn",
        "2026-11-21: reference 0.1.0, torch 2.13.0 on A processor, 2 cores, Linux 6, "
        "Python 3.11.7, 4 repeats; slow to wake (61.0 us for the round trip of a byte)",
    ],
)
def test_line_beside_torch_has_figures_ratios_and_their_answer(words_of, words):
    lines = words_of("costs", rows=LATE, earlier=EARLY)
    assert any(words in line for line in lines), lines


def test_run_on_a_busy_machine_says_so(words_of):
    lines = words_of("costs", rows=LATE | run(load=9.5) | {"results": LATE["results"]})
    assert any("busy with other work (load 9.5 on 2 cores)" in line for line in lines)


def test_axis_is_logarithmic_and_has_1_and_all_spreads(monkeypatch):
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(tiny_project.EXTENSIONS)
    from records.costs import Axis, Spread

    axis = Axis.over([Spread(0.25, 0.5, 2.0)])
    labels = [label.rstrip("\N{MULTIPLICATION SIGN}") for label in axis.ticks.values()]
    assert labels == ["1/4", "1/2", "1", "2"]
    long = Axis.over([Spread(1 / 64, 0.5, 4.0)])
    assert len(long.ticks) == 5, "labels side by side have to fit"
    assert [axis.place(ratio) for ratio in (0.25, 0.5, 2)] == [0, 33.33, 100]
    assert Axis.over([Spread(3.0, 4.0, 5.0)]).place(1) == 0
    assert Axis.over([]).place(1) == 0


PEERS = run(
    *(result("reference", FD, row, FORK) for row in (HELD, DICT)),
    result("reference", FD, HELD, SPAWN, 3.0),
    result("reference", FS, HELD, FORK, 2.0),
    result("paddle", FS, HELD, FORK, 4.0),
    result("paddle", FS, DICT, FORK, absent="failed: ended <here>"),
    result("mindspore", FD, HELD, FORK, absent="not claimed: fork"),
    result("mindspore", FD, HELD, SPAWN, 2.0),
    result("stdlib", "default", HELD, FORK),
    result("stdlib", "default", DICT, FORK, 0.5),
    *(result("reference", FD, CHILD, ("", one)) for one in ("fork", "spawn")),
    result("mindspore", FD, CHILD, ("", "spawn"), 2.0),
    result("stdlib", "default", "descriptors", ("", "fork"), 0.01, "open"),
    result("reference", FD, "descriptors", ("", "fork"), 0.01, "open"),
    subjects=[
        *(("reference", FD, "0.1.0"), ("reference", FS, "0.1.0")),
        *(("paddle", FS, "3.3.1"), ("mindspore", FD, "2.10.0")),
        ("stdlib", "default", ""),
    ],
)


@pytest.mark.parametrize(
    "words",
    [
        "| paddle file_system 3.3.1 | mindspore file_descriptor spawn 2.10.0 | stdlib",
        "A resend-held-one-way | 115.0 us | 230.0 us | ▾ 0.50x faster | ▴ 1.50x slower "
        "| ≈ 1.00x no clear difference |",
        "A state-dict | 115.0 us | not measured | - | - | ▴ 2.00x slower |",
        "A child-start (fork) | 115.0 us | not measured | - | - | - |",
        "A child-start (spawn) | 115.0 us | not measured | - | ▾ 0.50x faster | - |",
        "A descriptors | 1.1 | not measured | - | - | 1.1 |",
        "paddle file_system state-dict pipe fork: failed: ended <here>",
    ],
)
def test_line_beside_others_has_ratios_to_the_same_strategy_or_the_default(
    words_of, words
):
    lines = words_of("cost-peers", peers=PEERS)
    assert any(words in line for line in lines), lines


def test_cell_says_that_something_failed(words_of):
    both = result("reference", FS, DICT, FORK)
    lines = words_of("cost-peers", peers=PEERS | {"results": [*PEERS["results"], both]})
    assert any("| 115.0 us | 115.0 us | fails | - | ▴" in line for line in lines)


def test_file_that_holds_no_results_ends_the_build(site_of):
    from sphinx.errors import ExtensionError

    configuration = tiny_project.FILES["docs/conf.py"] + 'extensions += ["records"]\n'
    page = "---\norphan: true\n---\n# C\n\n```{record} costs reports/a.json\n```\n"
    files = {"docs/conf.py": configuration, "docs/costs.md": page}
    with pytest.raises(ExtensionError, match=r"a\.json: no record that costs\.html"):
        site_of(files | {"docs/reports/a.json": '{"schema": 1}'})
