"""The table of releases: since when each clause is broken, and what was fixed."""

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest
import tiny_project
from packaging.version import Version
from recorded import recorded
from sharedtensor_conformance.clauses import parse_chapter
from sharedtensor_conformance.evidence import Citation
from sharedtensor_conformance.report.expectations import load_expectations
from sharedtensor_conformance.report.records import read_report
from sharedtensor_conformance.report.summary_file import read_summary, summary_text
from sharedtensor_conformance.report.verdicts import Verdict
from tiny_report import case_of, text_of, write_report

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "docs/reports/releases"
EXPECTATIONS = ROOT / "conformance/sharedtensor_conformance/expectations"
CLAUSES = parse_chapter(tiny_project.CHAPTER, "tiny.md")

PAGE = "docs/implementations/bad.md"
CHANGED = {
    "docs/index.md": (
        "# Index\n\n```{toctree}\ntiny\npromises\ntables\nimplementations/bad\n```\n"
    ),
    PAGE: "# bad\n\n```{releases} bad\n```\n",
}


@pytest.fixture
def releases(extension):
    return extension("clauses.releases")


@pytest.fixture
def row_of(releases):
    """Return a function that makes a row of verdicts, one for each release."""
    from clauses.reports import Judgement

    def made(by_chance=frozenset(), known=frozenset(), **verdicts):
        found = []
        for name, verdict in verdicts.items():
            judged = (
                {"TINY-1": Judgement(Verdict(verdict), True, "")} if verdict else {}
            )
            version = Version(name.removeprefix("v").replace("_", "."))
            sets = frozenset(by_chance), frozenset(known)
            given = ("tiny", version, "2026-01-01T10:00:00Z", judged, *sets)
            found.append(releases.Release(*given))
        return releases.Row(CLAUSES[0], tuple(found))

    return made


@pytest.mark.parametrize(
    ("verdicts", "since"),
    [
        ({"v2_2": "fail", "v2_6": "crash", "v2_13": "hang"}, "2.2 or earlier"),
        ({"v2_2": "pass", "v2_6": "fail"}, "after 2.2, by 2.6"),
        ({"v2_2": "fail", "v2_6": "pass"}, "2.2 or earlier; fixed after 2.2, by 2.6"),
        (
            {"v2_2": "pass", "v2_6": "fail", "v2_13": "pass"},
            "after 2.2, by 2.6; fixed after 2.6, by 2.13",
        ),
        ({"v2_2": "", "v2_6": "unsupported", "v2_13": "fail"}, "2.13 or earlier"),
        ({"v2_2": "pass", "v2_6": "not-run", "v2_13": "fail"}, "after 2.2, by 2.13"),
        ({"v2_2": "follows", "v2_6": "blocked"}, "2.2 or earlier"),
    ],
)
def test_since_says_between_which_releases_a_clause_changed(row_of, verdicts, since):
    assert row_of(**verdicts).since == since


def test_what_held_by_chance_is_not_said_to_be_fixed(row_of):
    chance = row_of(by_chance={"TINY-1"}, v2_2="fail", v2_6="pass", v2_13="fail")
    assert [str(state) for state in chance.states] == [
        "broken",
        "intermittent",
        "broken",
    ]
    assert chance.since == "2.2 or earlier"


def test_row_is_there_for_what_some_release_breaks(releases, row_of):
    broken, held = row_of(v2_2="fail", v2_6="pass"), row_of(v2_2="pass", v2_6="pass")
    assert len(releases.rows(CLAUSES, broken.releases)) == 1
    assert releases.rows(CLAUSES, held.releases) == []
    chance = row_of(by_chance={"TINY-1"}, v2_2="pass")
    assert releases.rows(CLAUSES, chance.releases) == []
    known = row_of(by_chance={"TINY-1"}, known={"TINY-1"}, v2_2="pass")
    assert [row.since for row in releases.rows(CLAUSES, known.releases)] == [
        "2.2 or earlier"
    ]


def test_deviations_that_show_by_chance_are_those_of_clauses_and_tests(
    releases, tmp_path
):
    file = tmp_path / "mine.toml"
    about = {
        'clause = "TINY-1"': "true",
        'clause = "TINY-2"': "false",
        'test = "test_tiny.py::test_c"': "true",
        'test = "test_tiny.py::test_d"': "false",
        'test = "test_histories.py::test_e"': "false",
    }
    file.write_text(
        "".join(
            f'[[expect]]\n{one}\noutcomes = ["fail"]\ncause = "It does."\n'
            f'intermittent = {by_chance}\nreproducer = "it.py"\ndate = 2026-01-02\n'
            for one, by_chance in about.items()
        )
    )
    (tmp_path / "causes").mkdir()
    (tmp_path / "causes" / "it.py").write_text("")
    cited = {"c": ("TINY-3", "TINY-4"), "d": ("TINY-5",), "e": ("TINY-6", "TINY-7")}
    tests = [Citation(f"test_{name}", ids, "", "", 1) for name, ids in cited.items()]
    entries = load_expectations(file).entries
    found = set(releases.clauses_by_chance(entries, tests))
    assert found == {"TINY-1", "TINY-3", "TINY-4", "TINY-6", "TINY-7"}


def write_release(root, version, verdict, **changed):
    """Write the summary of a run on one release; `changed` are keys of its summary."""
    write_report(root, "other", case_of(verdict))
    report = root / "docs/reports/other.jsonl"
    data = json.loads(summary_text(read_report(report)))
    report.unlink()
    data["run"]["implementation"] |= {"name": "bad", "version": version}
    data["summary"] |= changed
    file = root / f"docs/reports/releases/bad-{version}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(data))


def test_page_shows_each_release_and_the_files(build, tmp_path):
    tiny_project.write_project(tmp_path, CHANGED)
    write_report(tmp_path, "bad", case_of(Verdict.FAIL))
    write_release(tmp_path, "7.10", Verdict.FAIL)  # above 7.5, that of the report
    write_release(tmp_path, "7.2", Verdict.PASS)
    site = build(tmp_path, CHANGED)
    assert site.warnings == ""
    page = site.page("implementations/bad.html")
    head, row = (text_of(one) for one in re.findall(r"<tr.*?</tr>", page, re.DOTALL))
    assert head == "Clause Title 7.2 7.5 7.10 Broken since"
    told = "The first clause ✓ held ✗ broken ✗ broken after 7.2, by 7.5"
    assert row == f"TINY-1 {told}"
    assert "at least one of the 3 releases from 7.2 to 7.10 breaks: 1." in page
    assert "in each release in which they were judged: 0." in page
    assert "After 7.2, by 7.5, broken: TINY-1" in text_of(page)
    parts = re.findall(r'<div class="([\w-]+)" style="[^"]+" title="([^"]+)"', page)
    assert parts == [
        *[("held", "7.2: 1 held"), ("not-run", "7.2: 1 not judged")],
        *[("broken", "7.5: 1 broken"), ("not-run", "7.5: 1 not judged")],
        *[("broken", "7.10: 1 broken"), ("not-run", "7.10: 1 not judged")],
    ]
    for file in ("bad-7.2.json", "bad-7.10.json"):
        assert f"{file} (2026-01-01)" in text_of(page)
    assert {"bad-7.2.json", "bad-7.10.json"} <= {
        file.name for file in (site.folder / "_downloads").rglob("*.json")
    }


def test_page_without_recorded_releases_says_so(site_of):
    site = site_of(CHANGED)
    assert site.warnings == ""
    page = site.page("implementations/bad.html")
    assert "No run of an earlier release is recorded." in page
    assert "<table" not in page


def test_run_that_did_not_pass_is_not_shown(build, tmp_path):
    from sphinx.errors import ExtensionError

    tiny_project.write_project(tmp_path, CHANGED)
    write_release(tmp_path, "7.2", Verdict.FAIL, exit_status=1)
    with pytest.raises(ExtensionError, match=r"bad-7\.2\.json is not of a full"):
        build(tmp_path, CHANGED)


def earlier():
    """Return the earlier releases of torch that the session judges."""
    for node in ast.parse((ROOT / "noxfile.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == (
            "EARLIER_TORCH"
        ):
            return sorted(map(Version, ast.literal_eval(node.value)))
    raise LookupError("noxfile.py has no EARLIER_TORCH")


@cache
def judged():
    """Return the minor releases of torch that were judged, as pairs of numbers."""
    newest = recorded("torch").run.implementation.version
    return sorted(one.release[:2] for one in (*earlier(), Version(newest)))


def judged_on_a_device():
    """Return the same of those that were judged on a CUDA device."""
    version = recorded("gpu/torch").run.implementation.version
    return [Version(version).release[:2]]


def is_about_a_device(entry):
    return "/device/" in entry.reproducer


def test_each_release_of_the_session_is_recorded():
    files = {f"torch-{version}.json" for version in earlier()}
    assert {file.name for file in RECORDS.glob("*.json")} == files


@pytest.mark.parametrize("version", earlier(), ids=str)
def test_record_is_of_a_full_run_that_passed_and_found_nothing_unexpected(version):
    found = read_summary(RECORDS / f"torch-{version}.json")
    assert found.run.implementation.name == "torch"
    assert Version(found.run.implementation.version).public == str(version)
    assert found.run.selection.full
    assert found.summary.complete
    assert found.summary.exit_status == 0
    assert found.summary.stale == ()
    assert all(result.expected for result in found.summary.clauses.values())


@pytest.mark.parametrize("name", ["torch", "torch-patched"])
def test_what_is_expected_of_a_release_was_seen_at_both_ends_of_its_range(name):
    for entry in load_expectations(EXPECTATIONS / f"{name}.toml").entries:
        bounds = sorted(Version(one.version).release for one in entry.versions)
        first, *ends = bounds
        where = judged_on_a_device() if is_about_a_device(entry) else judged()
        seen = [one for one in where if first <= one and (not ends or [one] < ends)]
        last = seen[-1]
        assert seen[0] == first, entry.subject
        assert ends in ([], [(last[0], last[1] + 1)]), entry.subject
        assert ends or last == where[-1], entry.subject


@pytest.mark.parametrize(
    "path", sorted(EXPECTATIONS.glob("*.toml")), ids=lambda path: path.stem
)
def test_newest_judged_release_is_the_recorded_one(path):
    version = Version(recorded(path.stem).run.implementation.version)
    assert load_expectations(path).judged == version.base_version


def test_what_is_expected_on_a_device_was_seen_on_one():
    entries = load_expectations(EXPECTATIONS / "torch.toml").entries
    expected = [entry for entry in entries if is_about_a_device(entry)]
    broken = [one for one in recorded("gpu/torch").cases if one.verdict == "fail"]
    assert expected
    for entry in expected:
        seen = [one for one in broken if one.cause == entry.cause]
        assert any(
            entry.clause in one.clauses or entry.test == one.test for one in seen
        )
