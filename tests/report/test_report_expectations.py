"""Expectations: what a file may say, which cases it covers, and when it is stale."""

from __future__ import annotations

import datetime

import pytest
from report_samples import case
from sharedtensor_conformance.report.expectations import (
    Expectations,
    ExpectationsError,
    load_expectations,
)

GOOD = {
    "clause": '"GRAD-2"',
    "outcomes": '["fail"]',
    "cause": '"It sends no grad."',
    "date": "2026-11-21",
}


def _load(tmp_path, *entries: dict[str, str]) -> Expectations:
    blocks = [
        "\n".join(["[[expect]]", *(f"{k} = {v}" for k, v in entry.items() if v)])
        for entry in entries
    ]
    path = tmp_path / "sample.toml"
    (tmp_path / "causes").mkdir(exist_ok=True)
    path.write_text("\n\n".join(blocks) + "\n")
    return load_expectations(path)


def _reproducer(tmp_path) -> str:
    folder = tmp_path / "causes" / "sample"
    folder.mkdir(parents=True)
    (folder / "grad.py").write_text("")
    return '"sample/grad.py"'


def test_an_entry_with_every_key_is_read(tmp_path):
    entry = GOOD | {
        "when": "\"python_version >= '3.0'\"",
        "version": '">=1.0"',
        "axes": '{ strategy = "file_system", channel = ["pipe", "queue"] }',
        "reproducer": _reproducer(tmp_path),
        "link": '"https://example.org/1"',
        "intermittent": "true",
    }
    (found,) = _load(tmp_path, entry).entries
    assert found.subject == "GRAD-2"
    assert found.outcomes == {"fail"}
    assert found.axes["channel"] == {"pipe", "queue"}
    assert found.date == datetime.date(2026, 11, 21)
    assert found.intermittent
    assert found.applies_to("1.5")


def test_without_a_file_nothing_is_expected():
    none = load_expectations(None)
    assert none.covers(case("GRAD-2", "fail"), "1.0") is None
    assert none.stale([case("GRAD-2")], "1.0") == []


MALFORMED = {
    "no subject": ({"clause": ""}, "clause: exactly one of 'clause' and 'test'"),
    "two subjects": ({"test": '"test_a.py::b"'}, "clause: exactly one of"),
    "clause as number": ({"clause": "2"}, "clause: has to be a non-empty"),
    "clause with a star": ({"clause": '"GRAD-*"'}, "clause: 'GRAD-[*]' is not a"),
    "test with parameters": (
        {"clause": "", "test": '"test_a.py::b[c]"'},
        "test: .* is not a test like",
    ),
    "no outcomes": ({"outcomes": ""}, "outcomes: has to be a list of some of"),
    "empty outcomes": ({"outcomes": "[]"}, "outcomes: has to be a list"),
    "one outcome": ({"outcomes": '"fail"'}, "outcomes: has to be a list"),
    "pass expected": ({"outcomes": '["pass"]'}, "outcomes: 'pass' cannot be expected"),
    "error expected": ({"outcomes": '["error"]'}, "outcomes: 'error' cannot be exp"),
    "table as outcome": ({"outcomes": "[{}]"}, "outcomes: {} cannot be expected"),
    "no cause": ({"cause": ""}, "cause: is missing"),
    "blank cause": (
        {"cause": '" "'},
        "cause: is empty: write why GRAD-2 does not hold",
    ),
    "cause as number": ({"cause": "2"}, "cause: has to be a non-empty string"),
    "no date": ({"date": ""}, "date: has to be a date without"),
    "date as text": ({"date": '"2026-11-21"'}, "date: has to be a date with"),
    "date with time": ({"date": "2026-11-21T10:00:00Z"}, "date: has to be a date"),
    "marker": ({"when": '"python >= 3"'}, "when: 'python >= 3' is not a marker"),
    "marker as flag": ({"when": "true"}, "when: has to be a non-empty"),
    "version": ({"version": '"2.0 or so"'}, "version: '2.0 or so' is not a ver"),
    "version as number": ({"version": "2.0"}, "version: has to be a non-empty"),
    "axes as list": ({"axes": '["strategy"]'}, "axes: has to be a table"),
    "axis as number": ({"axes": "{ strategy = 1 }"}, "axes: strategy has to be"),
    "axis without value": ({"axes": "{ strategy = [] }"}, "axes: strategy has to be"),
    "no such reproducer": ({"reproducer": '"a.py"'}, "reproducer: there is no program"),
    "reproducer outside": (
        {"reproducer": '"../sample.toml"'},
        "reproducer: there is no program",
    ),
    "link": ({"link": '"issue 12"'}, "link: 'issue 12' does not begin with"),
    "intermittent as text": ({"intermittent": '"no"'}, "intermittent: has to be true"),
    "intermittent alone": ({"intermittent": "true"}, "intermittent: is allowed only"),
    "unknown key": ({"reason": '"x"'}, "reason: is not known; the keys are"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_entry_is_named_with_file_number_and_key(tmp_path, name):
    change, said = MALFORMED[name]
    with pytest.raises(ExpectationsError, match=rf"sample\.toml: entry 2: {said}") as e:
        _load(tmp_path, GOOD, GOOD | change)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[[expect]", "is not TOML: "),
        ("[expect]\n", "each entry has to begin with"),
        ("expect = [1]\n", "each entry has to begin with"),
        ("[[expected]]\n", "the key 'expected' is not known"),
        ('judged = "the newest"\n', "judged: 'the newest' is not a version like"),
        ("judged = 2.13\n", "judged: 2.13 is not a version like"),
    ],
)
def test_a_malformed_file_is_refused(tmp_path, content, said):
    path = tmp_path / "sample.toml"
    path.write_text(content)
    with pytest.raises(ExpectationsError, match=rf"sample\.toml.* {said}|: {said}"):
        load_expectations(path)


@pytest.mark.parametrize(
    ("judged", "version", "carried_over"),
    [
        ("2.13.0", "2.14.1", "2.13.0"),
        ("2.13.0", "2.13.1", "2.13.0"),
        ("2.13.0", "2.14.0.dev20261101+cpu", "2.13.0"),
        ("2.13.0", "2.13.0+cpu", ""),
        ("2.13.0", "2.9.1", ""),
        ("2.13.0", "unknown", ""),
        ("", "2.14.1", ""),
    ],
)
def test_known_deviations_are_carried_over_to_a_newer_release(
    judged, version, carried_over
):
    assert Expectations(judged=judged).carried_over_to(version) == carried_over


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ExpectationsError, match="cannot be read"):
            load_expectations(path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "s.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ExpectationsError, match="is not TOML"):
        load_expectations(tmp_path / "s.toml")


FS, FD = {"strategy": "file_system"}, {"strategy": "file_descriptor"}


@pytest.mark.parametrize(
    ("change", "found", "covered"),
    [
        ({}, case("GRAD-2", "fail"), True),
        ({}, case("SHARE-1 GRAD-2", "fail"), True),
        ({}, case("GRAD-1", "fail"), False),
        ({}, case("GRAD-2", "crash"), False),
        ({"outcomes": '["fail", "crash"]'}, case("GRAD-2", "crash"), True),
        ({"axes": '{ strategy = "file_system" }'}, case("GRAD-2", "fail"), False),
        (
            {"axes": '{ strategy = "file_system" }'},
            case("GRAD-2", "fail", axes=FS),
            True,
        ),
        ({"axes": '{ channel = "queue" }'}, case("GRAD-2", "fail"), False),
        (
            {"clause": "", "test": '"test_grad.py::GRAD_2"'},
            case("GRAD-2", "fail"),
            True,
        ),
        (
            {"clause": "", "test": '"test_grad.py::GRAD_1"'},
            case("GRAD-2", "fail"),
            False,
        ),
        ({"when": "\"python_version < '3'\""}, case("GRAD-2", "fail"), False),
        ({"when": "\"python_version > '3'\""}, case("GRAD-2", "fail"), True),
        ({"version": '">=2.0"'}, case("GRAD-2", "fail"), False),
        ({"version": '"<2.0"'}, case("GRAD-2", "fail"), True),
    ],
)
def test_a_case_is_covered_where_everything_matches(tmp_path, change, found, covered):
    expectations = _load(tmp_path, GOOD | change)
    assert bool(expectations.covers(found, "1.5+local")) is covered


def test_a_version_that_cannot_be_compared_matches_no_specifier(tmp_path):
    expectations = _load(tmp_path, GOOD | {"version": '">=0"'})
    assert expectations.covers(case("GRAD-2", "fail"), "unknown") is None
    assert expectations.covers(case("GRAD-2", "fail"), "2.0.dev1") is not None


def test_the_first_matching_entry_gives_the_cause(tmp_path):
    expectations = _load(
        tmp_path,
        GOOD | {"cause": '"first"', "outcomes": '["hang"]'},
        GOOD | {"cause": '"second"'},
        GOOD | {"cause": '"third"'},
    )
    found = expectations.covers(case("GRAD-2", "fail"), "1")
    assert found is not None
    assert found.cause == "second"


HELD, BROKEN = case("GRAD-2"), case("GRAD-2", "fail", expected=True, axes=FS)


@pytest.mark.parametrize(
    ("change", "cases", "said"),
    [
        ({}, [HELD], "expects a deviation, but all its cases pass"),
        ({}, [HELD, case("GRAD-2", "not-run", axes=FS)], "all its cases pass"),
        ({}, [case("GRAD-1")], "matches no case"),
        ({}, [], "matches no case"),
        ({}, [HELD, BROKEN], ""),
        ({}, [case("GRAD-2", "crash")], ""),
        ({}, [case("GRAD-2", "not-run")], ""),
        ({}, [case("GRAD-2", "unsupported")], ""),
        ({"axes": '{ strategy = "file_descriptor" }'}, [HELD, BROKEN], "all its cases"),
        ({"axes": '{ strategy = "file_system" }'}, [HELD], ""),
        (
            {"axes": '{ strategy = "file_system" }'},
            [HELD, case("GRAD-1", axes=FS)],
            "matches no case",
        ),
        ({"when": "\"python_version < '3'\""}, [HELD], ""),
        ({"version": '">=2"'}, [HELD], ""),
        ({"version": '"<2"'}, [HELD], "all its cases pass"),
        ({}, [HELD, case("GRAD-2", "follows", id="b")], ""),
    ],
)
def test_an_entry_that_is_no_longer_true_is_stale(tmp_path, change, cases, said):
    stale = _load(tmp_path, GOOD | change).stale(cases, "1.5")
    assert len(stale) == bool(said)
    assert all(
        sentence.startswith("sample.toml: entry 1 (GRAD-2)") for sentence in stale
    )
    assert said in "".join(stale)


def test_an_intermittent_deviation_may_stay_away_but_not_match_nothing(tmp_path):
    entry = GOOD | {"intermittent": "true", "reproducer": _reproducer(tmp_path)}
    expectations = _load(tmp_path, entry)
    assert expectations.stale([HELD], "1") == []
    assert len(expectations.stale([case("GRAD-1")], "1")) == 1


# Entries that a file takes over


def _others(tmp_path) -> None:
    """Write a file with three entries beside the sample."""
    program = _reproducer(tmp_path)
    by_name = GOOD | {"axes": '{ strategy = "name" }', "reproducer": program}
    other = GOOD | {"clause": '"VIEW-9"', "cause": '"It sends no flag."'}
    _load(tmp_path, GOOD, by_name, other)
    (tmp_path / "sample.toml").rename(tmp_path / "other.toml")


def test_a_file_takes_over_what_another_says_of_a_clause(tmp_path):
    _others(tmp_path)
    taken = {"clause": '"GRAD-2"', "from": '"other.toml"', "outcomes": '["hang"]'}
    found = _load(tmp_path, taken, GOOD | {"clause": '"GRAD-3"'}).entries
    subjects = [(one.number, one.subject) for one in found]
    assert subjects == [(1, "GRAD-2"), (1, "GRAD-2"), (2, "GRAD-3")]
    assert [one.cause for one in found] == ["It sends no grad."] * 3
    assert [set(one.outcomes) for one in found] == [{"hang"}, {"hang"}, {"fail"}]
    assert [dict(one.axes) for one in found] == [{}, {"strategy": {"name"}}, {}]


def test_a_reproducer_chooses_among_the_entries_of_a_clause(tmp_path):
    _others(tmp_path)
    taken = {"clause": '"GRAD-2"', "from": '"other.toml"'}
    (found,) = _load(tmp_path, taken | {"reproducer": '"sample/grad.py"'}).entries
    assert found.axes == {"strategy": {"name"}}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"from": '"missing.toml"'}, "there is no other file 'missing.toml'"),
        ({"from": '"sample.toml"'}, "there is no other file 'sample.toml'"),
        ({"clause": '"GRAD-3"'}, "other.toml has no entry with {'clause': 'GRAD-3'}"),
        ({"clause": "", "test": ""}, "exactly one of 'clause' and 'test'"),
        ({"reproducer": '"sample/other.py"'}, "other.toml has no entry with"),
    ],
)
def test_what_cannot_be_taken_over_is_named(tmp_path, more, said):
    _others(tmp_path)
    taken = {"clause": '"GRAD-2"', "from": '"other.toml"'} | more
    with pytest.raises(ExpectationsError, match="entry 1: ") as refusal:
        _load(tmp_path, taken)
    assert said in str(refusal.value)
