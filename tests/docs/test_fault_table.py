"""The fault table on the site: what each cell shows, and which tables are refused."""

import re

import pytest
import tiny_project
from sharedtensor_conformance.evidence import Sources, read_evidence
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.verdicts import Verdict
from tiny_report import text_of, write_report

CHAPTERS = "conformance/sharedtensor_conformance/chapters"

TABLE = '''\
"""Two steps, two roles, two faults."""

from __future__ import annotations

from dataclasses import dataclass

ROLES = {"owner": "shares it", "manager": "removes it"}
FAULTS = {"exit": "it exits", "drop": "it is not done"}


@dataclass(frozen=True)
class Step:
    name: str
    description: str
    actor: str
    managed: bool = False


@dataclass(frozen=True)
class Cell:
    step: Step
    role: str
    fault: str
    clause: str = "TINY-1"

    @property
    def name(self):
        return f"{self.step.name}-{self.role}-{self.fault}"

    @property
    def managed(self):
        return self.step.managed


STEPS = (
    Step("share", "it is moved", "owner"),
    Step("unlink", "the name goes", "manager", managed=True),
)


def reason_against(step, role, fault):
    if fault == "drop" and role != step.actor:
        return "only the actor can leave it out: see TINY-2"
    return ""


def cells():
    every = [Cell(s, r, f) for s in STEPS for r in ROLES for f in FAULTS]
    return [c for c in every if not reason_against(c.step, c.role, c.fault)]
'''

TESTS = '''\
@clause("TINY-1", vary=())
@over_cells_of("TINY-1")
def test_others_go_on(cell):
    """One ends; the others go on."""


@clause("TINY-1", vary=())
@over_cells_of("TINY-1", managed=True)
def test_others_go_on_with_a_manager(cell):
    """The same with a manager."""
'''

FILES = {
    f"{CHAPTERS}/fault_table.py": TABLE,
    f"{CHAPTERS}/test_fault.py": TESTS,
    "docs/faulty.md": "# Faults\n\n```{fault-table}\n```\n",
    "docs/index.md": "# Index\n\n```{toctree}\ntiny\npromises\ntables\nfaulty\n```\n",
}
PLAIN, MANAGED = "test_others_go_on", "test_others_go_on_with_a_manager"


def cells_of(page):
    """Return the HTML of the cells, by step, role and fault."""
    table = re.search(r'<table class="fault-table">.*?</table>', page, re.DOTALL)[0]
    found = {}
    for body in table.split("<tbody>")[1:]:
        step = re.search(r"<strong>([^<]*):</strong>", body)[1]
        for row in body.split("<tr>")[2:]:
            role = re.search(r'<th scope="row">(\w+)', row)[1]
            cells = re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)
            for fault, cell in zip(("exit", "drop"), cells, strict=True):
                found[f"{step}-{role}-{fault}"] = cell
    return found


def case_of(test, cell, strategy, verdict=Verdict.PASS, evidence=""):
    return Case(
        id=f"test_fault.py::{test}[{strategy}-fork-{cell}]",
        test=f"test_fault.py::{test}",
        clauses=("TINY-1",),
        verdict=verdict,
        expected=not verdict.broken,
        axes={"cell": cell, "strategy": strategy, "start_method": "fork"},
        evidence=evidence,
    )


def write_table(root, file, *cases, **more):
    write_report(root, "good", *cases, file=file, full=False, **more)


@pytest.fixture(scope="module")
def bare(build, tmp_path_factory):
    """The site with the table, and without a report."""
    return build(tmp_path_factory.mktemp("bare"), FILES)


@pytest.fixture(scope="module")
def judged(build, tmp_path_factory):
    """The site with a report of the suite, and one of the table, on one version."""
    root = tmp_path_factory.mktemp("judged")
    test = "test_tiny.py::test_receiver_sees_the_write"
    main = Case(f"{test}[fd-fork]", test, ("TINY-2",), Verdict.PASS)
    write_report(root, "good", main)
    failed = Verdict.FAIL, "one is left\nnamely this"
    write_table(
        *(root, "good-faults.jsonl"),
        case_of(PLAIN, "share-owner-exit", "file_descriptor"),
        case_of(PLAIN, "share-owner-exit", "file_system", *failed),
        case_of(PLAIN, "share-owner-drop", "file_descriptor"),
        case_of(PLAIN, "share-owner-drop", "file_system"),
        case_of(PLAIN, "share-manager-exit", "file_descriptor"),
        case_of(MANAGED, "unlink-owner-exit", "file_system", *failed),
        started="02",
    )
    return build(root, FILES)


def test_each_cell_is_a_case_or_a_reason(bare):
    assert bare.warnings == ""
    page = bare.page("faulty.html")
    cells = cells_of(page)
    reasons = {name for name, cell in cells.items() if "#fault-reason-1" in cell}
    assert len(cells) == 8
    assert reasons == {"share-manager-drop", "unlink-owner-drop"}
    for name in cells.keys() - reasons:
        assert text_of(cells[name]) == f"case {name} TINY-1 ○ not run"
    assert "No report judges the table." in page


def test_case_links_to_the_test_that_runs_the_cell(bare):
    cells = cells_of(bare.page("faulty.html"))
    for name, line in {"share-owner-exit": 3, "unlink-manager-drop": 9}.items():
        anchor = f"source/{CHAPTERS}/test_fault.py.html#L{line}"
        assert f'href="{anchor}" title="{name}: others go on' in cells[name]
    assert 'href="TINY-1.html"' in cells["share-owner-exit"]


def test_reason_is_listed_once_and_links_to_its_clauses(bare):
    page = bare.page("faulty.html")
    assert page.count('id="fault-reason-') == 1
    listed = page.partition('id="fault-reason-1"')[2].partition("</li>")[0]
    assert "only the actor can leave it out: see TINY-2 ." in text_of(listed)
    assert 'href="TINY-2.html"' in listed


def test_steps_roles_and_faults_are_explained_and_heads_have_a_scope(bare):
    page = bare.page("faulty.html")
    words = text_of(page)
    assert "unlink manager the name goes only with a manager" in words
    assert "manager removes it" in words
    assert "drop it is not done" in words
    for scope, count in {"col": 3, "rowgroup": 2, "row": 4}.items():
        assert page.count(f'scope="{scope}"') == count
    assert re.search(r'tabindex="0" role="region" aria-label="[^"]+"', page)


def test_verdicts_are_told_by_strategy_where_they_differ(judged):
    assert judged.warnings == ""
    cells = cells_of(judged.page("faulty.html"))
    told = {name: text_of(cell).partition("TINY-1 ")[2] for name, cell in cells.items()}
    assert told["share-owner-exit"] == "good fd ✓ pass fs ✗ fail"
    assert told["share-owner-drop"] == "good ✓ pass"
    assert told["unlink-owner-exit"] == "good ✗ fail"
    assert told["share-manager-exit"] == "good fd ✓ pass fs ○ not run"
    assert told["unlink-manager-drop"] == "good ○ not run"
    for name, said in {"share-owner-exit": "fail", "share-owner-drop": "pass"}.items():
        title = f"good 7.5: file_descriptor pass, file_system {said}"
        assert f'title="{title}"' in cells[name]


def test_verdicts_are_counted_by_strategy(judged):
    words = text_of(judged.page("faulty.html"))
    assert "good 7.5 file_descriptor 3 3 ✓ pass" in words
    assert "good 7.5 file_system 3 2 ✗ fail , 1 ✓ pass" in words


def test_heat_map_has_a_square_for_each_step_and_fault_with_what_is_broken(judged):
    page = judged.page("faulty.html")
    maps = re.findall(r'<figure class="heat">.*?</figure>', page, re.DOTALL)
    squares = [
        re.findall(r'href="([^"]+)" aria-label="([^"]+)".*?<rect class="(\w+)"', one)
        for one in maps
    ]
    share, unlink = "#fault-step-share", "#fault-step-unlink"
    assert squares == [
        [
            (share, "share, exit: 0 of 2 broken", "held"),
            (share, "share, drop: 0 of 1 broken", "held"),
        ],
        [
            (share, "share, exit: 1 of 1 broken", "broken"),
            (share, "share, drop: 0 of 1 broken", "held"),
            (unlink, "unlink, exit: 1 of 1 broken", "broken"),
        ],
    ]
    assert f'id="{share[1:]}"' in page


def test_broken_cells_link_to_their_evidence(judged):
    page = judged.page("faulty.html")
    cells = cells_of(page)
    for name in ("share-owner-exit", "unlink-owner-exit"):
        assert 'href="#fault-finding-1"' in cells[name]
    assert page.count('id="fault-finding-') == 1
    entry = page.partition('id="fault-finding-1"')[2].partition("</details>")[0]
    assert "✗ fail in 2 cases: one is left" in text_of(entry)
    assert "namely this" in entry
    assert f"{MANAGED}[file_system-fork-unlink-owner-exit]" in text_of(entry)


def test_reports_on_one_version_are_one_column_of_the_matrix(judged):
    words = text_of(judged.page("tables.html"))
    assert judged.page("tables.html").count('<th scope="col" data-implementation=') == 1
    assert "TINY-1 The first clause MUST, core ✗ broken, new" in words
    assert "TINY-2 The second clause SHOULD, core ✓ held" in words
    assert (
        "good 7.5 only a part was run 6 1 broken 2026-01-02 good-faults.jsonl" in words
    )
    assert "2026-01-01 good.jsonl" in words
    page = judged.page("TINY-1.html")
    assert text_of(page).count("good 7.5 ✗ broken, new : fail") == 1


def test_later_one_of_two_reports_counts_and_a_version_has_its_column(
    site_of, tmp_path
):
    for file, day, verdict in (
        *[("a.jsonl", "02", Verdict.PASS), ("b.jsonl", "01", Verdict.FAIL)],
        ("other.jsonl", "01", Verdict.FAIL),
    ):
        case = case_of(PLAIN, "share-owner-exit", "file_system", verdict)
        write_table(tmp_path, file, case, started=day)
    path = tmp_path / "docs/reports/other.jsonl"
    path.write_text(path.read_text().replace('"7.5"', '"8.0"'))
    site = site_of(FILES)
    cell = cells_of(site.page("faulty.html"))["share-owner-exit"]
    assert "good 7.5 ✓ pass good 8.0 ✗ fail" in text_of(cell)
    words = text_of(site.page("tables.html"))
    assert "Clause good 7.5 good 8.0" in words
    assert "TINY-1 The first clause MUST, core ✓ held ✗ broken, new" in words


def test_report_with_a_cell_that_is_not_run_is_a_warning(site_of, tmp_path):
    odd = ("share-nobody-exit", "share-manager-drop")
    cases = [case_of(PLAIN, cell, "file_system") for cell in odd]
    write_table(tmp_path, "odd.jsonl", *cases)
    warnings = site_of(FILES).warnings
    for cell in odd:
        assert f"odd.jsonl has a case of the cell {cell}, which the fault" in warnings


RUN = "if not reason_against(c.step, c.role, c.fault)]"


@pytest.mark.parametrize(
    ("file", "written", "instead", "complaint"),
    [
        (
            *("fault_table.py", RUN),
            'if c.name != "share-owner-exit" and c.fault == "exit"]',
            "share-owner-exit has neither a case nor a reason",
        ),
        (
            *("fault_table.py", RUN, "if c.name]"),
            "share-manager-drop has a reason against it, and yet a test runs it",
        ),
        (
            *("test_fault.py", ", managed=True", ""),
            "no test runs unlink-owner-exit, which judges TINY-1",
        ),
        (
            *("test_fault.py", '@over_cells_of("TINY-1")', '@over_cells_of("TINY-2")'),
            "test_others_go_on runs the cells of TINY-2 and does not cite it",
        ),
    ],
)
def test_table_with_a_hole_is_refused(
    build, tmp_path, file, written, instead, complaint
):
    from clauses import faults
    from sphinx.errors import ExtensionError

    text = FILES[f"{CHAPTERS}/{file}"]
    assert written in text
    changed = {f"{CHAPTERS}/{file}": text.replace(written, instead)}
    tiny_project.write_project(tmp_path, FILES | changed)
    tests = read_evidence(Sources.of_checkout(tmp_path)).tests
    with pytest.raises(ExtensionError, match=complaint):
        faults.read(tmp_path, tests)


def test_changed_reason_is_shown_when_the_site_is_built_again(site_of):
    site_of(FILES)
    changed = TABLE.replace("only the actor", "nobody but the actor")
    site = site_of(FILES | {f"{CHAPTERS}/fault_table.py": changed})
    assert "nobody but the actor" in site.page("faulty.html")
