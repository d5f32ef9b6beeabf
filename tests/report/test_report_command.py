"""The command ``shared-tensor-spec``, as a user meets it: output and exit statuses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from xml.etree import ElementTree

import pytest
import report_samples as samples
from command import COMMAND, call, call_outside
from report_samples import case
from sharedtensor_conformance.clauses import load_clauses

SPEC = load_clauses()


def _report(path, *broken, summary=True, **options):
    """Write a report in which the whole spec held but for the cases `broken`."""
    cited = {id for one in broken for id in one.clauses}
    cases = [*broken, *(case(id) for id in SPEC if id not in cited)]
    claims = {clause.profile for clause in SPEC.values()} - {"cuda"}
    options = {"claims": sorted(claims), "clauses": SPEC} | options
    lines = samples.lines(samples.report(cases, **options))
    return samples.write(path, lines if summary else lines[:-1])


def _wrong(called, said):
    assert called.returncode == 4
    assert called.stdout == ""
    assert len(called.stderr.splitlines()) == 1
    assert said in called.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["judge"], "invalid choice: 'judge'"),
        (["--verbose"], "required: COMMAND"),
        (["report"], "the following arguments are required: FILE"),
        (["report", "no.jsonl"], "the report no.jsonl cannot be read: No such file"),
        (["report", "/"], "the report / cannot be read: Is a directory"),
        (["diff", "no.jsonl"], "the following arguments are required: B"),
        (["diff", "no.jsonl", "none"], "the report no.jsonl cannot be read"),
        (["gate", "no.jsonl"], "the following arguments are required: --require"),
        (["gate", "no.jsonl", "--require", "core"], "the report no.jsonl cannot be"),
        (["gate", "no.jsonl", "--require", "cor"], "there is no profile 'cor'"),
        (["gate", "no.jsonl", "--require="], "no profile is required"),
        (["mutants", "no_such_mutant"], "there is no mutant 'no_such_mutant'"),
        (["mutants", "--jobs", "0"], "invalid positive int value: '0'"),
        (["mutants", "--limit", "nan"], "invalid positive float value: 'nan'"),
        (["check-adapter"], "the following arguments are required: NAME"),
        (["check-adapter", "refrence"], "there is no implementation 'refrence'"),
    ],
)
def test_wrong_use_is_one_sentence_and_status_4(tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    _wrong(call(*arguments), said)


@pytest.mark.parametrize(
    "command",
    [[], ["check-adapter"], ["report"], ["diff"], ["merge"], ["gate"], ["mutants"]],
)
def test_help_teaches(command):
    called = call(*command, "--help")
    assert called.returncode == 0
    said = " ".join(called.stdout.lower().split())
    assert re.search("exit status(?: of this command)?: 0 .* 4 usage error", said)
    assert "130 interrupted" in said
    assert not command or f"\n  shared-tensor-spec {command[0]}" in called.stdout


def test_the_version_is_told():
    assert call_outside("--version").stdout == "shared-tensor-spec 0.1.0\n"


def test_a_report_is_shown(tmp_path):
    path = _report(
        tmp_path / "r", case("GRAD-1", "fail", evidence="seen \udc80 \u2603")
    )
    called = call_outside("report", path, PYTHONIOENCODING="ascii")
    assert called.returncode == 0
    assert called.stderr == ""
    assert "GRAD-1  requires_grad arrives as it was" in called.stdout
    assert "| seen \\udc80 \\u2603" in called.stdout
    assert "\033" not in called.stdout
    last = called.stdout.splitlines()[-1]
    assert last == "sample 1.2 does not pass: 1 clause broken (new)."


def test_a_report_without_a_summary_is_judged_and_said_to_be_cut_short(tmp_path):
    path = _report(tmp_path / "r", summary=False)
    called = call("report", path)
    assert called.returncode == 0
    count = len(SPEC)
    said = " ".join(called.stdout.split())
    assert said.endswith(
        f"sample 1.2 was not judged completely: cut short after {count} of {count} "
        f"planned cases, so far {count} clauses held."
    )


def test_a_report_that_was_cut_short_says_nothing_of_what_was_not_reached(tmp_path):
    path = _report(tmp_path / "r", case("GRAD-1", "fail"), summary=False)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]))
    said = " ".join(call("report", path).stdout.split())
    assert "judged by no case" not in said
    assert said.endswith(
        "does not pass: 1 clause broken (new), cut short after 1 of "
        f"{len(SPEC)} planned cases."
    )


def test_a_report_of_unknown_clauses_without_a_summary_is_refused(tmp_path):
    clauses = SPEC | {"GRAD-99": samples.clause("GRAD-99", profile="grad")}
    path = _report(
        tmp_path / "r", case("GRAD-99"), clauses=clauses, summary=False, full=False
    )
    _wrong(call("report", path), "cites GRAD-99, which is no clause of the spec")


def test_a_report_that_violates_the_schema_is_refused(tmp_path):
    path = _report(tmp_path / "r")
    path.write_text(path.read_text().replace('"pass"', '"passed"', 1))
    _wrong(call("report", path), "line 2 violates the schema: verdict: 'passed'")


def test_a_report_becomes_junit_and_markdown(tmp_path):
    path = _report(tmp_path / "r", case("GRAD-1", "fail"))
    junit, page = tmp_path / "new" / "junit.xml", tmp_path / "page.md"
    called = call("report", path, "--junit", junit, "--markdown", page)
    assert called.returncode == 0
    assert ElementTree.parse(junit).getroot().get("failures") == "1"
    assert page.read_text().startswith("### Conformance of sample 1.2\n")
    printed = call("report", path, "--markdown", "-").stdout
    assert printed == page.read_text()


def test_a_difference_decides_the_status(tmp_path):
    good = _report(tmp_path / "good")
    bad = _report(tmp_path / "bad", case("GRAD-1", "fail"))
    worse = call("diff", good, bad)
    assert worse.returncode == 1
    assert (
        "clauses newly broken (1)\n  GRAD-1: held, now broken (new)\n" in worse.stdout
    )
    better = call("diff", bad, good)
    assert better.returncode == 0
    assert "clauses newly held (1)\n  GRAD-1: broken (new), now held\n" in better.stdout


def test_a_difference_warns_of_reports_that_are_hardly_comparable(tmp_path):
    good = _report(tmp_path / "good", claims=("core", "grad"))
    claims = ("core", "views")
    other = _report(tmp_path / "other", name="someone", claims=claims, summary=False)
    said = call("diff", good, other).stdout
    assert "note: B differs from A: name sample, now someone\n" in said
    assert "note: B differs from A: claims without grad\n" in said
    assert "note: B differs from A: claims with views\n" in said
    assert f"note: the run of {other} was cut short" in said


def test_the_gate_is_open_for_a_report_in_which_all_held(tmp_path):
    called = call("gate", _report(tmp_path / "r"), "--require", "core,grad")
    assert called.returncode == 0
    assert called.stdout.startswith("gate open for core, grad: ")
    assert called.stdout.endswith(" held, 0 tolerated, 0 reasons against it\n")


def test_the_gate_is_closed_with_a_sentence_for_each_thing(tmp_path):
    path = _report(
        tmp_path / "r",
        case("GRAD-1", "fail"),
        case("GRAD-2", "fail", expected=True),
        full=False,
    )
    called = call("gate", path, "--require", "grad,cuda")
    assert called.returncode == 1
    missing = [line for line in called.stdout.splitlines() if "closed: " in line]
    cuda = sum(c.profile == "cuda" and c.level == "MUST" for c in SPEC.values())
    assert len(missing) == 1 + 2 + 1 + cuda
    assert called.stdout.splitlines()[-1].startswith("gate closed for grad, cuda: ")
    assert called.stderr == ""


def test_the_gate_lets_expected_deviations_through_on_request(tmp_path):
    path = _report(tmp_path / "r", case("GRAD-2", "fail", expected=True))
    assert call("gate", path, "--require", "grad").returncode == 1
    called = call("gate", path, "--require", "grad", "--allow-expected")
    assert called.returncode == 0
    assert called.stdout.startswith("tolerated: GRAD-2 (")


def test_the_gate_is_stricter_under_strict(tmp_path):
    plain = (c for c in SPEC.values() if c.profile != "cuda")
    should = next(c for c in plain if c.level == "SHOULD")
    path = _report(tmp_path / "r", case(should.id, "fail"))
    assert call("gate", path, "--require", should.profile).returncode == 0
    assert call("gate", path, "--require", should.profile, "--strict").returncode == 1


def test_mutants_are_listed_as_text_and_as_json():
    listed = json.loads(call("mutants", "--json").stdout)
    text = call("mutants").stdout.splitlines()
    assert [one["name"] for one in listed] == [line.split()[0] for line in text]
    assert all(set(one["clauses"]) <= set(SPEC) for one in listed)
    keys = {"name", "clauses", "replaces", "sentence", "file", "line"}
    assert all(set(one) == keys for one in listed)


ADAPTER = """
from sharedtensor_conformance.adapter import Implementation

class Operations:
    def share(self, tensor): ...

conformance_adapter = Implementation(
    "broken", "broken_adapter:Operations", frozenset({"core"}), version="3"
)
"""


def test_an_adapter_s_problems_are_listed(tmp_path):
    (tmp_path / "broken_adapter.py").write_text(ADAPTER)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    called = call_outside(
        "check-adapter", "broken_adapter:conformance_adapter", PYTHONPATH=paths
    )
    assert called.returncode == 1
    assert called.stdout.startswith("broken 3\n  claims: core\n  operations: share\n")
    assert "problem: profile 'core' is claimed but the operation" in called.stdout
    assert "problem: the operation 'share' is there but its profile" in called.stdout


def test_a_reader_that_has_seen_enough_causes_no_traceback(tmp_path):
    path = _report(tmp_path / "r", case("GRAD-1", "fail", evidence="long " * 50_000))
    with subprocess.Popen(
        [*COMMAND, "report", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 1


def test_an_interruption_ends_with_130_and_without_a_traceback(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # reading it blocks, so the command cannot be done
    with subprocess.Popen(
        [*COMMAND, "report", tmp_path / "pipe"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        writer = os.open(tmp_path / "pipe", os.O_WRONLY)  # returns once it reads
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
        os.close(writer)
    assert child.returncode == 130
    assert said == "shared-tensor-spec: interrupted\n"
