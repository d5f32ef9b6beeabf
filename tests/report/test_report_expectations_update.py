"""Updating a file of expectations: what goes, what stays to the letter, what is new."""

from __future__ import annotations

import subprocess
import sys

import pytest
import report_samples as samples
from report_samples import CLAUSES, case
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.cli import main
from sharedtensor_conformance.harness.ledger.leaks import Growth, names_of
from sharedtensor_conformance.harness.ledger.ledger import kinds
from sharedtensor_conformance.report import expectations_update
from sharedtensor_conformance.report.expectations import (
    ExpectationsError,
    load_expectations,
)
from sharedtensor_conformance.report.expectations_update import UpdateError, update
from sharedtensor_conformance.report.groups import groups_of
from sharedtensor_conformance.report.signatures import NOT_WAITED

FS, FD = {"strategy": "file_system"}, {"strategy": "file_descriptor"}
FILE = """\
# What is known of sample.

[[expect]]
clause = "GRAD-1"
outcomes = ["fail", "crash"]  # either, by chance
cause = "It has none."
date = 2026-11-21

# SHARE

# This one is old.
[[expect]]
clause = "SHARE-1"
outcomes = [
    "fail",
]
axes = { strategy = ["file_descriptor", "file_system"] }
cause = "It copies."
date = 2026-11-21
"""
GRAD = FILE[FILE.index("[[") : FILE.index("# SHARE")]
SHARE = FILE[FILE.index("# This") :]


@pytest.fixture
def updated(tmp_path):
    """Update a file from a report of these cases; return the update."""

    def update_file(*cases, text=FILE, methods=("spawn",), **options):
        path = tmp_path / "known.toml"
        path.write_text(text)
        if "selected" in options:
            chosen = ("--impl=sample", *options.pop("selected"))
            options |= {"full": False, "options": chosen}
        report = samples.report(cases, source="r.jsonl", **options)
        report = samples.changed(report, "implementation", start_methods=methods)
        return update(text, load_expectations(path), report, CLAUSES)

    return update_file


def broken(clauses, verdict="fail", **options):
    return case(clauses, verdict, expected=False, **options)


BOTH = (broken("GRAD-1"), *(broken("SHARE-1", axes=axes) for axes in (FS, FD)))


def test_a_file_that_is_true_stays_as_it_is(updated):
    found = updated(*BOTH)
    assert (found.text, found.removed, found.narrowed, found.added) == (FILE, *[()] * 3)


def test_an_entry_whose_cases_pass_is_removed_with_its_comment(updated):
    found = updated(BOTH[0], case("SHARE-1", axes=FS), case("SHARE-1", axes=FD))
    assert found.text == FILE[: FILE.index("# This")].rstrip("\n") + "\n"
    said = "entry 2 (SHARE-1) expects a deviation, but all its cases pass"
    assert found.removed == (said,)


def test_the_comments_between_entries_stay_when_one_is_removed(updated):
    found = updated(case("GRAD-1"), *BOTH[1:])
    assert found.text == FILE.replace(GRAD, "")
    assert len(found.removed) == 1


def test_a_file_may_lose_all_of_its_entries(updated):
    found = updated(case("GRAD-1"), case("SHARE-1", axes=FS))
    assert found.text == "# What is known of sample.\n\n# SHARE\n"


def test_an_axis_value_that_no_longer_breaks_is_taken_out_of_its_list(updated):
    found = updated(BOTH[0], case("SHARE-1", axes=FS), broken("SHARE-1", axes=FD))
    assert found.text == FILE.replace(', "file_system"]', "]")
    (said,) = found.narrowed
    assert said == "entry 2 (SHARE-1) no longer occurs for strategy file_system"


def test_an_outcome_that_did_not_occur_stays_since_it_may_be_chance(updated):
    assert updated(broken("GRAD-1", "crash"), *BOTH[1:]).text == FILE


KEPT = {
    "nothing was judged": (case("GRAD-1", "not-run"),),
    "it is not supported": (case("GRAD-1", "unsupported"),),
    "it was blocked": (case("GRAD-1", "blocked"), case("GRAD-1", axes=FS)),
    "the suite failed": (case("GRAD-1", "error"), case("GRAD-1", axes=FS)),
    "one of two breaks": (broken("GRAD-1"), case("GRAD-1", axes=FS)),
}


@pytest.mark.parametrize("why", KEPT)
def test_an_entry_stays_if(updated, why):
    found = updated(*KEPT[why], *BOTH[1:])
    assert found.text == FILE


def test_an_entry_that_matches_no_case_of_a_full_run_is_removed(updated):
    found = updated(*BOTH[1:])
    assert found.text == FILE.replace(GRAD, "")
    assert found.removed == ("entry 1 (GRAD-1) matches no case",)


@pytest.mark.parametrize(
    "change",
    [
        ("date =", 'version = "<1"\ndate ='),
        ("date =", "when = \"python_version < '3'\"\ndate ="),
        ('"GRAD-1"', '"FAULT-1"'),
    ],
    ids=["other version", "other system", "long profile"],
)
def test_an_entry_that_does_not_apply_stays(updated, change):
    text = FILE.replace(*change, 1)
    assert updated(*BOTH[1:], text=text).text == text


def test_an_intermittent_entry_stays_though_its_cases_pass(updated, tmp_path):
    (tmp_path / "causes").mkdir()
    (tmp_path / "causes" / "a.py").touch()
    sometimes = 'intermittent = true\nreproducer = "a.py"\ndate ='
    text = FILE.replace("date =", sometimes, 1)
    assert updated(case("GRAD-1"), *BOTH[1:], text=text).text == text


# A release that is newer than the judged ones

JUDGED = 'judged = "1.1"\n\n'


def test_an_entry_whose_deviation_is_gone_ends_with_the_new_release(updated):
    text = JUDGED + FILE.replace("date =", 'version = ">=1.0"\ndate =', 1)
    found = updated(case("GRAD-1"), *BOTH[1:], text=text)
    ended = text.replace('">=1.0"', '">=1.0,<1.2"').replace('"1.1"', '"1.2"', 1)
    assert found.text == ended
    assert found.removed == (
        "entry 1 (GRAD-1) expects a deviation, but all its cases pass",
    )


def test_an_entry_that_is_narrowed_is_kept_for_earlier_releases(updated, tmp_path):
    text = JUDGED + FILE
    found = updated(
        BOTH[0], case("SHARE-1", axes=FS), broken("SHARE-1", axes=FD), text=text
    )
    path = tmp_path / "adopted.toml"
    path.write_text(found.text)
    adopted = load_expectations(path)
    assert adopted.judged == "1.2"
    expected = {
        version: [entry.axes.get("strategy") for entry in adopted.applying_to(version)]
        for version in ("1.1", "1.2", "1.3")
    }
    both = {"file_descriptor", "file_system"}
    assert expected == {
        "1.1": [None, both],
        "1.2": [None, {"file_descriptor"}],
        "1.3": [None, {"file_descriptor"}],
    }


def test_a_new_deviation_is_expected_from_the_new_release_on(updated):
    found = updated(*BOTH, broken("GRAD-2"), text=JUDGED + FILE)
    assert 'version = ">=1.2"\n' in found.text
    assert found.text.startswith('judged = "1.2"\n')


def test_a_deviation_of_an_earlier_release_is_expected_of_that_alone(updated):
    later = JUDGED.replace("1.1", "1.3") + FILE
    found = updated(*BOTH, broken("GRAD-2"), text=later)
    assert 'version = ">=1.2,<1.3"\n' in found.text
    assert found.text.startswith('judged = "1.3"\n')


def test_a_part_of_the_suite_records_no_new_release(updated):
    with pytest.raises(UpdateError, match=r"newer than 1\.1: run the whole suite"):
        updated(*BOTH, text=JUDGED + FILE, selected=["--clause=GRAD-1"])


# Runs of a part


PARTS = {
    "its clause": (["--clause=GRAD-1"], "removed"),
    "its profile": (["--profile=grad"], "removed"),
    "another clause": (["--clause=SHARE-1"], ""),
    "another profile": (["--profile=core"], ""),
    "its clause, not its profile": (["--clause=GRAD-1", "--profile=core"], ""),
    "all strategies": (
        ["--strategy=file_descriptor", "--strategy=file_system"],
        "removed",
    ),
    "one strategy": (["--strategy=file_descriptor"], 'strategy = ["file_system"]'),
    "one strategy and method": (
        ["--strategy=file_descriptor", "--start-method=spawn"],
        'strategy = ["file_system"]',
    ),
}


@pytest.mark.parametrize("part", PARTS)
def test_only_what_was_covered_changes(updated, part):
    selected, change = PARTS[part]
    found = updated(case("GRAD-1", axes=FD), selected=selected)
    assert SHARE in found.text
    if change == "removed":
        assert found.text == FILE.replace(GRAD, "")
    elif change:
        assert found.text == FILE.replace(
            GRAD, f"{GRAD.strip()}\naxes = {{{change}}}\n\n"
        )
        assert "only to strategy file_system" in found.narrowed[0]
    else:
        assert found.text == FILE


def test_an_entry_stays_if_what_is_left_is_no_product_of_values(updated):
    # file_descriptor under both methods, and file_system under spawn
    selected = ("--strategy=file_system", "--start-method=fork")
    passed = case("GRAD-1", axes=FS)
    assert updated(passed, selected=selected, methods=("fork", "spawn")).text == FILE


def test_a_list_of_values_is_narrowed_by_a_run_of_one_of_them(updated):
    found = updated(case("SHARE-1", axes=FS), selected=["--strategy=file_system"])
    assert ', "file_system"]' not in found.text
    assert 'strategy = ["file_descriptor"]' in found.text


# What is new


def test_a_new_deviation_gets_an_entry_that_nobody_can_load(updated, tmp_path):
    found = updated(*BOTH, broken("GRAD-2", evidence="not so: it is there\nmore"))
    assert found.text == FILE + (
        "\n# 1 case ended in fail, for example\n"
        "# test_grad.py::GRAD_2[file_descriptor]\n"
        "# not so: it is there\n"
        "[[expect]]\n"
        'clause = "GRAD-2"\n'
        'outcomes = ["fail"]\n'
        'version = ">=1.2"\n'
        'cause = ""\n'
        "date = 2026-11-21\n"
    )
    assert found.added == ("GRAD-2: 1 case ended in fail",)
    path = tmp_path / "new.toml"
    path.write_text(found.text)
    with pytest.raises(ExpectationsError, match="entry 3: cause: is empty: write why"):
        load_expectations(path)
    path.write_text(found.text.replace('cause = ""', 'cause = "A reason."'))
    entry = load_expectations(path).entries[2]
    assert (entry.subject, entry.cause) == ("GRAD-2", "A reason.")


NEW = {
    "where one axis breaks": (
        [broken("GRAD-2", axes=FS), case("GRAD-2", axes=FD)],
        ['clause = "GRAD-2"', 'axes = {strategy = "file_system"}'],
    ),
    "a clause that holds elsewhere": (
        [broken("GRAD-2"), case("SHARE-1 GRAD-2", axes=FD)],
        ['test = "test_grad.py::GRAD_2"'],
    ),
    "a clause that holds nowhere": (
        [broken("GRAD-2"), broken("SHARE-1 GRAD-2", "hang")],
        ['clause = "GRAD-2"', 'outcomes = ["fail", "hang"]'],
    ),
}


@pytest.mark.parametrize("what", NEW)
def test_a_new_entry_is_as_narrow_as_what_was_found(updated, what):
    cases, lines = NEW[what]
    found = updated(*cases, text="")
    assert len(found.added) == 1
    for line in lines:
        assert line in found.text.splitlines()


def left_by(mapped, segments):
    """Return the kinds of leaks, as a run reports them, of mappings and segments."""
    counts = {"descriptors": 0, "targets": {}, "threads": 0}
    before = {"mappings": 0, "mapped": {}, **counts}
    after = {"mappings": len(mapped), "mapped": kinds(mapped), **counts}
    growth = Growth()
    growth.add_process("owner", after, before)
    nothing = {"segments": [], "files": []}
    growth.add_names({"segments": segments, "files": []}, nothing)
    return names_of(growth.leaks)


def test_random_names_are_no_part_of_the_patterns_of_leaks(updated):
    mapped = ["/dev/shm/sem.IL12zM", "/dev/shm/sem.Qa9xyz", "/dev/shm/sem.abcdef"]
    left = left_by(mapped, ["psm_1a2b3c4d", "own-x1Y2"])
    found = updated(broken("GRAD-2", left=left), text="")
    leaks = '["mapping /dev/shm/sem.*", "segment own-*", "segment psm_*"]'
    assert f"leaks = {leaks}" in found.text.splitlines()


def test_comments_are_cut_between_words_but_for_the_id(updated):
    long = f"{'word ' * 15}is the last, and antidisestablishmentarianism is cut"
    id = f"test_grad.py::test_{'x' * 90}[file_descriptor]"
    found = updated(broken("GRAD-2", id=id, evidence=long), text="")
    lines = found.text.splitlines()
    assert lines[1] == f"# {id}"
    assert lines[2] == f"# {'word ' * 15}is the ..."
    assert max(map(len, [lines[0], *lines[2:]])) <= 88


@pytest.mark.parametrize(
    ("line", "cut"),
    [
        ("as it is", "as it is"),
        ("as it was", "as ..."),
        ("asitwasonce", "asitwasonce"),
        ("asitwasonce before", "asitwasonce ..."),
        ("an ant was", "an ..."),
    ],
)
def test_a_line_is_cut_between_two_words(line, cut):
    assert expectations_update._cut(line, 8) == cut


def test_the_clause_of_a_new_entry_is_the_one_that_reports_name_first(updated):
    seen = "not so: the grad is there"
    cases = [
        broken("GRAD-9", evidence=seen),
        broken("GRAD-9 GRAD-2 SHARE-1", evidence=seen, id="another"),
    ]
    report = samples.report(cases)
    (group,) = groups_of(report.cases, report.summary, CLAUSES)
    found = updated(*cases, text="")
    assert group.first == "SHARE-1"
    assert found.added == (
        "SHARE-1: 1 case ended in fail",
        "GRAD-9: 1 case ended in fail",
    )


def test_the_next_clause_is_taken_if_the_first_one_holds_elsewhere(updated):
    found = updated(broken("GRAD-2 SHARE-1"), case("SHARE-1"), text="")
    assert found.added == ("GRAD-2: 1 case ended in fail",)


def test_all_that_is_new_is_expected_once_it_has_causes(updated, tmp_path):
    cases = [*(c for cases, _ in NEW.values() for c in cases), *BOTH]
    found = updated(*cases, text="")
    (tmp_path / "new.toml").write_text(found.text.replace('cause = ""', 'cause = "x"'))
    known = load_expectations(tmp_path / "new.toml")
    assert all(known.covers(one, "1.2") for one in cases if one.verdict.broken)
    assert known.stale(cases, "1.2") == []


def test_what_is_blocked_or_an_error_gets_no_entry(updated):
    assert (
        updated(case("GRAD-2", "blocked"), case("GRAD-1", "error"), text="").text == ""
    )


def test_evidence_cannot_leave_its_comment(updated):
    found = updated(
        broken("GRAD-2", evidence='x\x1b[2J\r\n[[expect]]\ncause = "y"'), text=""
    )
    assert found.text.count("[[expect]]") == 1
    assert "\x1b" not in found.text


# What is refused


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"missing": 1}, "the run of .*r.jsonl was cut short"),
        (
            {"clauses": samples.spec(*list(CLAUSES.values())[:4])},
            "another text of CUDA-1",
        ),
        ({"selected": ["--case=x"]}, "of single cases"),
        ({"selected": ["--clause=SHARE-1", "--one-per-clause"]}, "of single cases"),
        ({"selected": []}, "of single cases"),
        ({"text": "expect = [{}]"}, "entry 1"),
    ],
)
def test_what_cannot_tell_what_has_gone_is_refused(updated, options, said):
    with pytest.raises((UpdateError, ExpectationsError), match=said):
        updated(case("SHARE-1"), **options)


@pytest.mark.parametrize(
    "unjudged",
    [
        case("GRAD-1", "follows", id="b"),
        case("GRAD-1", "blocked", id="b", evidence=f"{NOT_WAITED}3 cases hung"),
    ],
)
def test_a_report_with_cases_that_were_not_judged_is_refused(updated, unjudged):
    with pytest.raises(UpdateError, match="run the suite again with --all-cases"):
        updated(broken("GRAD-1"), unjudged)


def test_a_file_of_another_form_is_refused(updated):
    entry = ", ".join(GRAD.split("\n")[1:5]).replace("  # either, by chance", "")
    with pytest.raises(UpdateError, match="write each header on its own line"):
        updated(case("SHARE-1"), text=f"expect = [{{ {entry} }}]")


# The command


@pytest.fixture
def report(tmp_path):
    """Write a report on the installed spec in which GRAD-2 is broken."""
    spec = load_clauses()
    made = samples.report([broken("GRAD-2")], clauses=spec)
    return str(samples.write(tmp_path / "r.jsonl", samples.lines(made)))


def test_the_command_begins_a_file(report, tmp_path, capsys):
    path = tmp_path / "sample.toml"
    given = ["expectations", "update", report, f"--expectations={path}"]
    assert main([*given, "--dry-run"]) == 1
    assert '+clause = "GRAD-2"' in capsys.readouterr().out
    assert not path.exists()
    assert main(given) == 0
    said = capsys.readouterr().out
    assert "added: GRAD-2: 1 case ended in fail" in said
    assert "0 removed, 0 narrowed, 1 added" in said
    assert "Write the cause" in said
    assert main(given) == 4
    assert "cause: is empty" in capsys.readouterr().err
    path.write_text(path.read_text().replace('cause = ""', 'cause = "It sends none."'))
    assert main([*given, "--dry-run"]) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "no file of expectations is shipped for 'sample'"),
        (
            ["--expectations=torch.toml"],
            "is for 'torch', but the report is of 'sample'",
        ),
        (["--expectations=/"], "cannot be read"),
    ],
)
def test_wrong_use_is_one_sentence(report, capsys, options, said):
    assert main(["expectations", "update", report, *options]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_an_action_has_to_be_named():
    command = [sys.executable, "-m", "sharedtensor_conformance.cli", "expectations"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 4
    assert "ACTION" in done.stderr
