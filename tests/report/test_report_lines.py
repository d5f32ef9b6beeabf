"""The lines of a report: written, read back, and refused where they are no report."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import report_samples as samples
from jsonschema import Draft202012Validator
from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.report.records import (
    ReportError,
    ReportWriter,
    Subject,
    load_schema,
    read_report,
)
from sharedtensor_conformance.report.verdicts import Need

RUN, CASE, SUMMARY = 0, 1, -1


def _written(path: Path, sample: Any) -> Path:
    return samples.write(path, samples.lines(sample))


def test_what_was_written_is_read_back_equal(tmp_path):
    sample = samples.report(
        [
            samples.case(
                "SHARE-1 GRAD-1",
                "fail",
                evidence="one\ntwo \udc80 \x1b \u2603",
                cause="a cause",
                expected=True,
                repeated="vanished",
                checks=3,
                remote_calls=2,
                seconds=0.25,
            ),
            samples.case("GRAD-2"),
        ],
        stale=["sample.toml: entry 1 matches no case"],
        strict=True,
    )
    path = tmp_path / "made" / "here" / "report.jsonl"
    with closing(ReportWriter(path)) as writer:
        for line in (sample.run, *sample.cases, sample.summary):
            writer.write(line)
    found = read_report(path)
    assert found.run == sample.run
    assert found.cases == sample.cases
    assert found.summary == sample.summary
    assert found.complete


def test_needs_are_read_back_and_are_those_of_the_schema(tmp_path):
    needing = [samples.case("GRAD-1", "not-run", id=need, needs=need) for need in Need]
    found = read_report(_written(tmp_path / "r", samples.report(needing)))
    assert [case.needs for case in found.cases] == list(Need)
    assert all(isinstance(case.needs, Need) for case in found.cases)
    assert found.summary.clauses["GRAD-1"].needs == tuple(Need)
    assert load_schema()["$defs"]["need"]["enum"] == list(Need)


def test_a_report_without_needs_is_read(tmp_path):
    data = json.loads(json.dumps(samples.lines(samples.report())))
    assert all("needs" not in line for line in data[1:-1])
    for line in data[-1]["clauses"].values():
        del line["needs"]
    found = read_report(samples.write(tmp_path / "r", data))
    assert {case.needs for case in found.cases} == {None}
    assert found.summary.clauses["GRAD-1"].needs == ()


def test_line_of_a_case_leaves_out_what_is_as_in_most_cases():
    left_out = samples.case("GRAD-1", checks=0, remote_calls=0, seconds=0.0).as_data()
    assert set(left_out) <= {"type", "id", "test", "clauses", "verdict", "axes"}
    broken = samples.case("GRAD-1", "fail").as_data()
    assert broken["expected"] is False


def test_every_line_is_in_the_file_as_soon_as_it_is_written(tmp_path):
    path = tmp_path / "report.jsonl"
    writer = ReportWriter(path)
    writer.write(samples.run(2))
    writer.write(samples.case("SHARE-1"))
    found = read_report(path)
    assert len(found.cases) == 1
    assert found.summary is None
    assert not found.complete
    writer.close()
    writer.close()


def test_a_writer_without_a_path_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with closing(ReportWriter(None)) as writer:
        writer.write(samples.run(0))
    assert list(tmp_path.iterdir()) == []


def test_a_path_below_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match=r"file/report\.jsonl cannot be written: "):
        ReportWriter(tmp_path / "file" / "report.jsonl")


def test_a_full_disk_is_told_in_a_sentence():
    writer = ReportWriter("/dev/full")
    with pytest.raises(ReportError, match="/dev/full cannot be written: No space"):
        writer.write(samples.run(0))


def test_the_published_schema_accepts_every_line():
    schema = load_schema()
    Draft202012Validator.check_schema(schema)
    whole = Draft202012Validator(schema)
    for line in samples.lines(samples.report()):
        assert list(whole.iter_errors(json.loads(json.dumps(line)))) == []


def test_a_subject_is_made_from_an_implementation():
    claims = frozenset({"grad", "core"})
    subject = Subject.of(Implementation("it", "m:a", claims, version="2.0"))
    assert subject.claims == ("core", "grad")
    assert str(subject) == "it 2.0"


def test_a_last_line_that_stops_in_the_middle_is_dropped(tmp_path):
    sample = samples.report()
    path = _written(tmp_path / "r", sample)
    path.write_text(path.read_text()[:-40])
    found = read_report(path)
    assert found.cases == sample.cases
    assert found.summary is None
    assert not found.complete


# Each entry damages one line of a good report: line, keys to the place, new value
# (`...` removes the key), and what the sentence has to say.
VIOLATIONS = {
    "unknown type": (CASE, ["type"], "cases", "line 2 violates.*its type is none of"),
    "other schema": (RUN, ["schema"], 2, "line 1 has version 2 of the form of"),
    "schema as text": (RUN, ["schema"], "1", "line 1 violates the schema: schema: 1 "),
    "planned below 0": (RUN, ["planned"], -1, "planned: -1 is less than the minimum"),
    "local time": (RUN, ["started"], "2026-11-21T02:00:00", "started: .* not match"),
    "unknown machine key": (RUN, ["machine", "gpu"], "x", "machine: .*'gpu' was unex"),
    "no name": (RUN, ["implementation", "name"], "", "implementation.name: '' should"),
    "short hash": (RUN, ["spec", "hashes", "GRAD-1"], "abc", "spec.hashes.GRAD-1: "),
    "unknown verdict": (CASE, ["verdict"], "skip", "line 2 violates.*verdict: 'skip'"),
    "no clause": (CASE, ["clauses"], [], "clauses: .* should be non-empty"),
    "axis as number": (CASE, ["axes"], {"n": 1}, "axes.n: 1 is not of type 'string'"),
    "pass unexpected": (CASE, ["expected"], False, "verdict: 'pass' is not one of"),
    "repeated thrice": (CASE, ["repeated"], "thrice", "repeated: 'thrice' is not one"),
    "pass with a need": (CASE, ["needs"], "a second user", "verdict: 'not-run' was"),
    "unknown need": (
        SUMMARY,
        ["clauses", "GRAD-1", "needs"],
        ["luck"],
        "GRAD-1.needs.0: 'luck'",
    ),
    "no verdict": (CASE, ["verdict"], ..., "'verdict' is a required property"),
    "case with a note": (CASE, ["note"], "x", "'note' was unexpected"),
    "level": (
        SUMMARY,
        ["clauses", "GRAD-1", "level"],
        "MAYBE",
        "GRAD-1.level: 'MAYBE'",
    ),
    "cases lost": (SUMMARY, ["cases"], 5, "holds 4 cases but its summary counts 5"),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_violation_is_refused_with_its_line_and_place(tmp_path, name):
    number, keys, value, said = VIOLATIONS[name]
    data = json.loads(json.dumps(samples.lines(samples.report())))
    place = data[number]
    for key in keys[:-1]:
        place = place[key]
    if value is ...:
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    path = samples.write(tmp_path / "r", data)
    with pytest.raises(ReportError, match=said):
        read_report(path)
    published = Draft202012Validator(load_schema())
    assert keys == ["cases"] or not published.is_valid(data[number])


def _reordered(order: str) -> list[object]:
    run, case, other, *_, summary = samples.lines(samples.report())
    by_letter = {"r": run, "a": case, "b": other, "s": summary, "x": [1], "n": None}
    return [by_letter[letter] for letter in order]


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ("ar", "line 1 comes before the run line"),
        ("s", "line 1 comes before the run line"),
        ("rar", "line 3 is a second run line"),
        ("raa", r"line 3 repeats the case test_share\.py::SHARE_1"),
        ("rsa", "holds 0 cases but|line 3 comes after the summary"),
        ("rss", "line 3 comes after the summary"),
        ("rax", "line 3 violates the schema"),
        ("ran", "line 3 violates the schema"),
    ],
)
def test_lines_out_of_order_are_refused(tmp_path, order, said):
    path = samples.write(tmp_path / "r", _reordered(order))
    with pytest.raises(ReportError, match=said):
        read_report(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty: a report has a run line"),
        (b'{"type": "run"', "is not a report: it has no complete line"),
        (b"PK\x03\x04\xff\n", "is not a report: it is not UTF-8"),
        (b"hello\n", "line 1 is not JSON"),
        (b"\n", "line 1 is not JSON"),
        (b"[" * 100_000 + b"\n", "line 1 is not JSON"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path, content, said):
    path = tmp_path / "r"
    path.write_bytes(content)
    with pytest.raises(ReportError, match=said):
        read_report(path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_lacks_are_refused(tmp_path, number):
    path = _written(tmp_path / "r", samples.report())
    content = path.read_text()
    assert '"seconds":61.0' in content
    path.write_text(content.replace('"seconds":61.0', f'"seconds":{number}'))
    with pytest.raises(ReportError, match=f"line 6 is not JSON: {number} is not a"):
        read_report(path)


def test_not_json_in_the_middle_is_refused_with_its_line(tmp_path):
    path = _written(tmp_path / "r", samples.report())
    broken = path.read_text().splitlines()
    broken[2] = broken[2][:-5]
    path.write_text("\n".join(broken) + "\n")
    with pytest.raises(ReportError, match="line 3 is not JSON"):
        read_report(path)
