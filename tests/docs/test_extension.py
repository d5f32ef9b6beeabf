"""The Sphinx extension of the site: what it shows, and what it refuses."""

import re
from collections import Counter
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urldefrag, urljoin

import pytest
import tiny_project
from recorded import recorded
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.report.judge import Standing
from sharedtensor_conformance.report.run_view import RunView
from sharedtensor_conformance.report.verdicts import Need, Verdict
from tiny_report import case_of, text_of, write_report

ROOT = Path(__file__).parents[2]
SUITE = "conformance/sharedtensor_conformance"
CHAPTERS, MUTANTS = f"{SUITE}/chapters", f"{SUITE}/mutants/chapters"
CAUSES = f"{SUITE}/expectations/causes"
CHAPTER_FILE = "spec/tiny.md"
DOCS, SPEC = "breaks its own documentation", "differs from this specification"


def expected(cause, program, **more):
    """Return a file of expectations about the first clause."""
    extra = "".join(f"{name} = {value}\n" for name, value in more.items())
    return (
        f'[[expect]]\nclause = "TINY-1"\noutcomes = ["fail"]\ncause = "{cause}"\n'
        f'reproducer = "{program}"\ndate = 2026-01-02\n{extra}'
    )


NAMES = ("good", "bad", "needy", "stale", "without", "chance")
SHOWN = ("good", "bad", "needy")
LISTED = "\n".join(f"implementations/{name}" for name in (*SHOWN, "stale"))
PROFILES = """\
# Profiles

```{profiles}
core
  Tensors are `shared`.

views needs core
  There are views.
```
"""
FILES = {
    "docs/conf.py": tiny_project.FILES["docs/conf.py"]
    + f"clauses_implementations = {list(SHOWN)}\n"
    + 'clauses_matrix = "tables"\nclauses_chapters = ["TINY"]\n'
    + "import sys\nfrom pathlib import Path\n"
    + "sys.path.insert(0, str(Path(__file__).parents[1] / 'reference/sharedtensor'))\n",
    "docs/index.md": (
        "# Index\n\n```{field}\n```\n\n```{toctree}\ntiny\npromises\ntables\nterms\n"
        f"profiles\ncode\n{LISTED}\n```\n"
    ),
    "docs/terms.md": "```{include} ../spec/terms.md\n```\n",
    "docs/profiles.md": PROFILES,
    "docs/code.md": (
        "# Code\n\n```{eval-rst}\n.. autofunction:: tiny_memory.move\n```\n"
    ),
    "spec/terms.md": (
        "# Terms\n\n```{glossary}\nstorage\n  Memory.\n\ntensor\n  A window.\n```\n"
    ),
    "reference/sharedtensor/tiny_memory.py": (
        'def move():\n    """Move UTF-8 text. Clause TINY-1."""\n'
    ),
    f"{SUITE}/expectations/bad.toml": expected(
        "It keeps a <copy>.", "acme/keeps.py", link='"https://acme.org/t/7"'
    ),
    f"{SUITE}/expectations/chance.toml": expected(
        "A thread may be faster.", "acme/faster.py", intermittent="true"
    ),
    f"{CAUSES}/acme/keeps.py": '"""Keeps a copy."""\n',
    f"{CAUSES}/acme/faster.py": "print('faster')\n",
    f"{CAUSES}/acme.toml": (
        '[causes.keeps]\npromises = ["P01"]\nexpected = "None."\n'
        'where = ["acme.py: keep"]\n'
        '[causes.faster]\nno-promise = "None."\nwhere = ["acme.py: run"]\n'
    ),
}
PAGE = "# {0}\n\n```{{implementation}} {0}\n```\n"
FILES |= {
    f"docs/implementations/{name}.md": PAGE.format(name) for name in (*SHOWN, "stale")
}


@pytest.fixture(scope="module")
def judged(build, tmp_path_factory):
    """The site with a report of each kind; two of them are about another text."""
    root = tmp_path_factory.mktemp("judged")
    tiny_project.write_project(root, FILES)
    known = case_of(Verdict.FAIL, cause="It keeps a <copy>.")
    write_report(root, "good", case_of(Verdict.PASS))
    write_report(root, "bad", known, expectations="bad.toml")
    write_report(root, "chance", case_of(Verdict.PASS), expectations="chance.toml")
    needy = case_of(Verdict.NOT_RUN, needs=Need.SECOND_USER)
    write_report(root, "needy", needy)
    other = {"TINY-1": "0" * 12}
    write_report(root, "stale", case_of(Verdict.FAIL, cause=""), hashes=other)
    write_report(root, "without", case_of(Verdict.UNSUPPORTED), hashes=other)
    return build(root, FILES)


def test_projects_build_without_a_warning(site, judged):
    assert site.warnings == ""
    assert judged.warnings == ""


SECOND_USER = f"the machine does not permit a second user: {Need.SECOND_USER.remedy}"
FIRST, SECOND = 'id="TINY-1"', 'id="TINY-2"'


@pytest.mark.parametrize(
    ("page", "after", "said"),
    [
        ("tiny.html", FIRST, "TINY-1 The first clause"),
        ("tiny.html", FIRST, "MUST profile core observes sharing answers P01 text"),
        ("tiny.html", FIRST, f"Why. The reasons. ✓ good : held ✗ bad : {DOCS}"),
        ("TINY-1.html", FIRST, f"Why. The reasons. ✓ good : held ✗ bad : {DOCS}"),
        ("TINY-1.html", FIRST, "Example The owner writes. Verdicts"),
        ("TINY-1.html", FIRST, "Tests receiver sees the write Reference"),
        ("TINY-1.html", FIRST, "keeps_a_copy Keeps a copy of each tensor."),
        ("TINY-2.html", SECOND, "Sends nothing. Replaces memory.send ."),
        ("TINY-2.html", SECOND, "Reference No code: The kernel does it."),
        ("TINY-1.html", FIRST, "good 7.5 ✓ held in 1 case"),
        ("TINY-1.html", FIRST, f"bad 7.5 ✗ {DOCS} : fail in 1 case It keeps a <copy>."),
        ("TINY-1.html", FIRST, "stale 7.5 ✗ broken, known : fail in 1 case Judged on"),
        ("TINY-1.html", FIRST, "recorded on 2026-01-02, program that shows it"),
        ("TINY-1.html", 'id="TINY-1-bad"', 'thread of its project """Keeps a copy."""'),
        ("TINY-1.html", 'id="TINY-1-chance"', "print ( 'faster' )"),
        ("TINY-1.html", FIRST, "expected 40, got 2"),
        ("TINY-1.html", FIRST, "needy 7.5 ○ not judged here Not judged, since"),
        ("TINY-1.html", FIRST, f"Not judged, since {SECOND_USER}."),
        (
            "TINY-1.html",
            FIRST,
            f"chance 7.5 ≠ {SPEC}, intermittent in 1 case This",
        ),
        ("TINY-1.html", FIRST, "A thread may be faster."),
        ("TINY-2.html", SECOND, "good 7.5 ○ not run : the report does not name this"),
        ("promises.html", "", "P01 It works. said here Answered by TINY-1"),
        ("promises.html", "", "Informative. Nothing can be seen of it."),
        ("profiles.html", "", "core Tensors are shared . none"),
        ("profiles.html", "", "TINY-1 , TINY-2"),
        ("profiles.html", "", "views There are views. core"),
        ("tables.html", "", "TINY-1 MUST core sharing 1 1 The first clause"),
        (
            "tables.html",
            "behind-TINY-1-bad",
            "It keeps a <copy>. Recorded on 2026-01-0",
        ),
        ("tables.html", "behind-TINY-1-stale", "No cause is recorded."),
        ("tables.html", "behind-TINY-1-stale", "Judged on another text of this clause"),
        ("tables.html", "behind-TINY-1-chance", f"≠ {SPEC}, intermittent in 1 case"),
        (
            "tables.html",
            "behind-TINY-1-chance",
            "is intermittent, and did not show in this run",
        ),
        ("tables.html", "report-list", f"bad 7.5 no 1 1 {DOCS} 2026-01-01 bad.jsonl"),
        ("index.html", "<figcaption", "bad 7.5 of 2026-01-01"),
        ("implementations/bad.html", "", f"✗ 1 {DOCS} ○ 1 not run"),
        ("implementations/bad.html", "", "1 cause, the most basic clause first."),
        ("implementations/bad.html", "", "TINY-1 : It keeps a <copy>. Fail in 1 case"),
        ("implementations/bad.html", "", "the clause is newer than the recorded run"),
        ("implementations/good.html", "", "Nothing: each clause that was judged held"),
        ("implementations/needy.html", "", f"{SECOND_USER} 1 TINY-1"),
        (
            "implementations/stale.html",
            "",
            "New: no known deviation explains it. Seen on",
        ),
        (
            "implementations/stale.html",
            *("", "clauses has changed since they were judged: TINY-1"),
        ),
    ],
)
def test_page_says_what_is_in_the_sources(judged, page, after, said):
    found = judged.page(page).partition(after) if after else ("", "", judged.page(page))
    assert said in unescape(text_of(f"<div {found[2]}" if after else found[2]))


def test_page_of_an_implementation_repeats_its_run_and_complains_of_nothing_else(
    judged,
):
    page = judged.page("implementations/bad.html")
    assert "$ pytest conformance --impl=bad" in re.sub(r"<[^>]+>", "", page)
    assert "has changed since they were judged" not in page
    assert "not judged here" not in page


@pytest.mark.parametrize(
    ("page", "link"),
    [
        ("TINY-1.html", f"source/{CHAPTERS}/test_tiny.py.html#L2"),
        ("TINY-1.html", "source/reference/sharedtensor/memory.py.html#L5"),
        ("TINY-2.html", "source/reference/sharedtensor/memory.py.html#L9"),
        ("TINY-1.html", f"source/{MUTANTS}/tiny.py.html#L2"),
        ("tiny.html", "promises.html#P01"),
        ("promises.html", "TINY-1.html"),
        ("promises.html", "https://acme.org/docs"),
        ("code.html", "TINY-1.html"),
        ("tables.html", "TINY-1.html#TINY-1-bad"),
        ("tiny.html", "TINY-1.html#TINY-1-bad"),
        ("TINY-1.html", "tiny.html#TINY-1"),
        ("TINY-1.html", "TINY-2.html"),
        ("TINY-1.html", f"source/{CAUSES}/acme/keeps.py.html"),
        ("tables.html", "https://acme.org/t/7"),
        ("implementations/bad.html", "../TINY-1.html"),
        ("implementations/bad.html", f"../source/{CAUSES}/acme/keeps.py.html"),
        *(("index.html", f"implementations/{name}.html") for name in SHOWN),
    ],
)
def test_page_links_to_what_it_is_made_from(judged, page, link):
    assert f'href="{link}"' in judged.page(page)


def test_no_link_within_the_site_is_dead(judged):
    pages = {
        path.relative_to(judged.folder).as_posix(): path.read_text(encoding="utf-8")
        for path in judged.folder.rglob("*.html")
    }
    for page, text in pages.items():
        for link in set(re.findall(r'href="([^":]+)"', text)):
            file, anchor = urldefrag(urljoin(page, unescape(link).partition("?")[0]))
            file = file or page
            assert (judged.folder / file).is_file(), f"{page}: {link}"
            exists = not anchor or f'id="{anchor}"' in pages.get(file, "")
            assert exists, f"{page}: {link}"


def test_link_to_the_evidence_leads_into_what_is_folded_and_so_opens_it(judged):
    page = judged.page("TINY-1.html")
    assert re.search(r'</summary>\s*<div id="TINY-1-bad">', page)


def test_clause_is_found_by_its_id_in_small_letters(judged):
    assert 'id="tiny-1"' in judged.page("tiny.html")


@pytest.mark.parametrize("text", ["See `it`.", "See ``it``."])
def test_what_stands_between_backticks_is_code(build, text):
    from clauses.rendering import with_code

    assert with_code(text) == 'See <code class="docutils literal">it</code>.'


def test_report_is_downloaded_from_its_own_folder(build):
    from clauses.reports import ON_A_DEVICE, Shown

    folder = ROOT / "docs/reports"
    assert Shown(folder / ON_A_DEVICE, ROOT).place == ON_A_DEVICE
    assert Shown(folder / "torch.jsonl", ROOT).place == "torch.jsonl"


def test_source_pages_show_the_files(judged):
    assert "Keeps a copy." in judged.page(f"source/{CAUSES}/acme/keeps.py.html")


def test_term_is_linked_where_a_clause_uses_it_first(judged):
    pattern = r'href="([^"]*term-[^"]*)"[^>]*>(.*?)</a>'
    found = re.findall(pattern, judged.page("tiny.html"))
    assert [(target, text_of(shown)) for target, shown in found] == [
        ("terms.html#term-tensor", "tensors"),
        ("terms.html#term-storage", "storage"),
    ]


def test_index_lists_all_clauses_in_order(site):
    page = site.page("tables.html")
    assert re.findall(r'href="(TINY-\d)\.html"', page) == ["TINY-1", "TINY-2"]
    assert "there is nothing to show" in page  # in place of the matrix


def test_picture_shows_what_is_held_and_broken_and_leads_into_the_matrix(judged):
    page = judged.page("index.html")
    links = dict(re.findall(r'href="(tables[^"]+)"[^>]*title="([^"]+)"', page))
    for name, outcome, slug in [
        *[("good", "held", "held"), ("bad", DOCS, "breaks-docs")],
        ("needy", "not judged here", "not-judged-here"),
    ]:
        where = f"implementation={name}"
        bar = f"tables.html?{where}&amp;verdict={slug}"
        assert links.pop(bar) == f"{name}: 1 {outcome}"
        rest = links.pop(f"tables.html?{where}&amp;verdict=not-run")
        assert rest == f"{name}: 1 not run"
        cell = links.pop(f"tables.html?chapter=TINY&amp;{where}#matrix-TINY")
        assert cell.split(", ") in (
            [f"1 {outcome}", "1 not run"],
            ["1 not run", f"1 {outcome}"],
        )
    assert links == {}  # other reports are in the matrix alone


def test_matrix_has_each_verdict_once_and_marks_rows_and_columns(judged):
    page = judged.page("tables.html")
    cells = Counter(re.findall(r'<td class="([a-z -]+)">', page))
    assert cells == {
        **{"held": 1, "not-claimed": 1, "not-judged-here": 1, "not-run": 6},
        **{"broken breaks-docs": 1, "broken differs": 1, "broken broken-otherwise": 1},
        "number": 6,
    }
    assert re.findall(r'<option value="([^"]*)">(broken|differs|breaks)', page) == [
        ("broken", "broken"),
        ("breaks-docs", "breaks"),
        ("differs", "differs"),
        ("broken-otherwise", "broken"),
    ]
    assert '<tr data-level="MUST" data-profile="core">' in page
    assert '<tr data-level="SHOULD" data-profile="core">' in page
    columns = re.findall(r'data-implementation="([^"]+)"', page)
    assert columns[:3] == list(SHOWN)
    assert set(columns) == set(NAMES)
    behind = re.findall(r'popover id="behind-TINY-1-(\w+)"', page)
    assert set(behind) == {"bad", "stale", "chance"}


def test_verdict_on_another_text_is_marked_unless_none_was_judged(judged):
    page = judged.page("TINY-1.html")
    assert page.count("Judged on another text of this clause.") == 1


def test_reports_can_be_downloaded(judged):
    page = judged.page("tables.html")
    copies = re.findall(r'download="" href="([^"]+)"', page)
    assert sorted(Path(copy).stem for copy in copies) == sorted(NAMES)
    for copy in copies:
        report = ROOT / judged.folder.parent / "docs/reports" / Path(copy).name
        assert (judged.folder / copy).read_text() == report.read_text()


def test_clause_without_backing_says_so_and_is_a_warning(site_of):
    tests, mutants = f"{CHAPTERS}/test_tiny.py", f"{MUTANTS}/tiny.py"
    bare = tiny_project.CHAPTER.replace(":no-code: The kernel does it.\n", "")
    changed = {CHAPTER_FILE: bare}
    for file in (tests, mutants):
        changed[file] = tiny_project.FILES[file].partition("\n\n")[0]
    site = site_of(changed)
    words = text_of(site.page("TINY-2.html"))
    assert "Example no test cites this clause" in words
    assert "Tests no test cites this clause" in words
    assert "no mutant breaks this clause" in words
    assert "no code of the reference cites this clause" in words
    for complaint in ("has no test", "has no mutant", "is cited by no code"):
        assert f"tiny.md:17: WARNING: TINY-2 {complaint}" in site.warnings


def test_incomplete_report_stops_the_build(site_of, tmp_path):
    from sphinx.errors import ExtensionError

    write_report(tmp_path, "bad", case_of(Verdict.FAIL))
    path = tmp_path / "docs/reports/bad.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:-1]), encoding="utf-8")
    with pytest.raises(ExtensionError, match="was cut short"):
        site_of()


def clause_block(id, level="MUST", title=":title: A clause\n", why="Why. It is."):
    """Return a clause of the tiny chapter, with one of its parts changed."""
    head = f"```{{clause}} {id}\n{title}:level: {level}\n:profile: core\n"
    return f"\n{head}:observes: values\n:promises: P77\n\nWords.\n\n{why}\n```\n"


FLAWED = {
    CHAPTER_FILE: tiny_project.CHAPTER
    + "\nSee {clause}`TINY-9` and {source}`reference/sharedtensor/nothing.py`.\n"
    + clause_block("TINY-2")
    + clause_block("TINY-3", level="MIGHT")
    + clause_block("TINY-4", why="")
    + clause_block("TINY-5", title=""),
    "docs/promises.md": (
        "# Promises\n\n```{promise} P01\n:source: https://acme.org/docs\n"
        ":informative: Wrongly.\n\nIt works.\n```\n\n"
        "```{promise} P02\n:source: https://acme.org/more\n\nIt is nice.\n```\n\n"
        "```{promise} P03\n:informative: Nothing shows it.\n\nIt is safe.\n```\n\n"
        "```{profiles}\nviews needs core\n```\n\n```{implementation} other\n```\n\n"
        "```{fault-table}\n```\n\n```{deviation-list} other\n```\n"
    ),
    f"{CHAPTERS}/test_other.py": '@clause("NONE-1")\ndef test_nothing():\n    pass\n',
    "reference/sharedtensor/other.py": '"""Keeps UTF-8 text. Clause TINY-6."""\n',
}


@pytest.fixture(scope="module")
def flawed(build, tmp_path_factory):
    """The warnings of a site with a flaw of each kind."""
    return build(tmp_path_factory.mktemp("flawed"), FLAWED).warnings


@pytest.mark.parametrize(
    "complaint",
    [
        "spec:clause reference target not found: TINY-9",
        "spec:promise reference target not found: P77",
        "spec:source reference target not found: reference/sharedtensor/nothing.py",
        "the clause TINY-2 is defined twice",
        "TINY-3 needs a :level: of MUST",
        "TINY-4 needs a paragraph that begins with 'Why.'",
        "TINY-5 needs a :title:",
        "test_nothing cites the clause NONE-1, which does not exist",
        "other cites the clause TINY-6, which does not exist",
        "the promise P01 needs either a clause or :informative:",
        "the promise P02 needs either a clause or :informative:",
        "the promise P03 needs a :source:, the address",
        "the profile 'views needs core' needs a claim",
        "there is nothing to show: other: no report is committed",
        "chapters/fault_table.py is missing",
        "there is nothing to show: 'other'",
    ],
)
def test_flaw_is_a_warning(flawed, site, complaint):
    assert complaint in flawed
    assert complaint not in site.warnings


def test_what_only_looks_like_a_clause_is_no_flaw(flawed):
    assert "UTF-8" not in flawed
    assert "the promise P02 needs a :source:" not in flawed


def test_changed_test_is_shown_when_the_site_is_built_again(site_of):
    site_of()
    file = f"{CHAPTERS}/test_tiny.py"
    renamed = tiny_project.FILES[file].replace("sees_the_write", "reads_the_write")
    assert "receiver reads the write" in site_of({file: renamed}).page("TINY-1.html")


def test_list_of_pages_is_made_once_for_each_depth_of_source_pages(build, tmp_path):
    from clauses.pages import source_pages

    made = []
    toctree = lambda page, **options: made.append(page) or f"as on {page}"  # noqa: E731
    linked = {"docs/conf.py", "docs/_ext/pages.py", "spec/tiny.md"}
    for file in linked:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    domain = SimpleNamespace(backing=SimpleNamespace(root=tmp_path), linked=linked)
    env = SimpleNamespace(domains={"spec": domain})
    app = SimpleNamespace(env=env, builder=SimpleNamespace(_get_local_toctree=toctree))
    beside = {
        page: context["toctree"](collapse=False)
        for page, context, _ in source_pages(app)
    }
    assert beside == {
        "source/docs/_ext/pages.py": "as on source/docs/_ext/pages.py",
        "source/docs/conf.py": "as on source/docs/conf.py",
        "source/spec/tiny.md": "as on source/docs/conf.py",
    }
    assert made == ["source/docs/_ext/pages.py", "source/docs/conf.py"]


@pytest.mark.parametrize("name", ["torch", "stdlib", "shared-ndarray2", "numpy-copy"])
def test_site_counts_a_report_as_the_suite_does(build, name):
    from clauses.outcomes import Outcome, counted_in
    from clauses.reports import Shown

    same = {
        Outcome.HELD: {Standing.HELD},
        Outcome.BREAKS_DOCS: {Standing.BREAKS_DOCS},
        Outcome.DIFFERS: {Standing.DIFFERS},
        Outcome.BROKEN: {Standing.NEW, Standing.ADVISORY, Standing.KNOWN},
        Outcome.NOT_CLAIMED: {Standing.NOT_CLAIMED},
        Outcome.NOT_RUN: {Standing.NOT_RUN},
        Outcome.NOT_HERE: {Standing.NOT_HERE},
    }
    report, clauses = recorded(name), load_clauses()
    view = RunView(report.run, report.cases, report.summary, clauses)
    shown = Shown(ROOT / "docs/reports" / f"{name}.jsonl", ROOT)
    ours = counted_in(shown, clauses.values())
    assert len(ours) > 2
    for outcome, standings in same.items():
        assert ours.get(outcome, 0) == sum(view.counts[one] for one in standings)


def test_build_without_cuda_is_not_said_to_claim_none(build):
    from clauses.outcomes import Outcome, outcome_in
    from clauses.reports import Column, Shown

    found = {}
    for name in ("torch", "stdlib"):
        shown = Shown(ROOT / "docs/reports" / f"{name}.jsonl", ROOT)
        column = Column(name, [shown])
        found[name] = outcome_in(column, "CUDA-1")
        assert bool(column.judgements["CUDA-1"].note) == (name == "torch")
    assert found == {"torch": Outcome.NOT_RUN, "stdlib": Outcome.NOT_CLAIMED}


def test_run_on_a_device_alone_is_a_column_of_the_clauses_about_it(build):
    from clauses.outcomes import Outcome, counted
    from clauses.reports import ON_A_DEVICE, columns, read_all

    assert (ROOT / "docs/reports" / ON_A_DEVICE).is_file()
    found = {one.name: one for one in columns(read_all(ROOT, []))}
    clauses = load_clauses().values()
    on_cuda = [one for one in clauses if one.profile == "cuda"]
    counts = counted(found["torch-cuda"], clauses)
    assert sum(counts.values()) == len(on_cuda)
    assert counts[Outcome.HELD] == 28
    assert sum(counts[one] for one in counts if one.breaks) == 6
    assert outcome_words(found) == "breaks its own documentation"
    assert sum(counted(found["torch"], clauses).values()) == len(clauses)


def outcome_words(found):
    """Return what a grad breaks that is lost on a device."""
    from clauses.outcomes import words_in

    return words_in(found["torch-cuda"], "CUDA-31")


def test_note_of_the_readme_names_what_the_machine_does_not_permit(judged, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "ci")
    import readme_results
    from clauses.reports import columns, read_all

    found = columns(read_all(judged.folder.parent, list(NAMES)))
    notes = {one.name: readme_results.not_here(one) for one in found}
    told = f"Not judged: 1 clause of `needy`, since {SECOND_USER}."
    assert notes == dict.fromkeys(NAMES, "") | {"needy": told}


@pytest.mark.parametrize(
    ("sources", "pages"),
    [("spec/*.md", "docs/spec"), ("docs/reports/*.jsonl", "docs/implementations")],
)
def test_each_chapter_and_each_judged_implementation_has_a_page(sources, pages):
    names = {path.stem.removesuffix("-faults") for path in ROOT.glob(sources)}
    assert names
    assert names <= {path.stem for path in (ROOT / pages).glob("*.md")}
