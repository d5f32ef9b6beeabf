"""The Sphinx extension of the site: what it shows, and what it refuses."""

import re
from pathlib import Path

import pytest
import tiny_project
from sharedtensor_conformance.clauses import parse_chapter
from sharedtensor_conformance.report.verdicts import Verdict
from tiny_report import write_report

CHAPTER_FILE = "spec/tiny.md"
CHAPTER = tiny_project.CHAPTER

CHAPTERS = "conformance/sharedtensor_conformance/chapters"
MUTANTS = "conformance/sharedtensor_conformance/mutants/chapters"


def text_of(html: str) -> str:
    """Return the words of a page, with single spaces."""
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


EXPECTATIONS = "conformance/sharedtensor_conformance/expectations"
BY_CHANCE = """
[[expect]]
clause = "TINY-1"
outcomes = ["fail"]
intermittent = true
cause = "A thread may be faster."
reproducer = "chance/faster.py"
date = 2026-01-01
"""


@pytest.fixture(scope="module")
def judged(build, tmp_path_factory):
    """The site with four reports; the second and the third are about another text."""
    root = tmp_path_factory.mktemp("judged")
    hashes = {clause.id: clause.hash for clause in parse_chapter(CHAPTER, "tiny.md")}
    write_report(root, "good", Verdict.PASS, hashes)
    changed = hashes | {"TINY-1": "0" * 12}
    write_report(root, "bad", Verdict.FAIL, changed)
    write_report(root, "without", Verdict.UNSUPPORTED, changed)
    write_report(root, "chance", Verdict.PASS, hashes, expectations="chance.toml")
    program = root / EXPECTATIONS / "causes" / "chance" / "faster.py"
    program.parent.mkdir(parents=True)
    program.write_text("print('faster')\n")
    (root / EXPECTATIONS / "chance.toml").write_text(BY_CHANCE)
    return build(root)


def test_good_project_builds_without_a_warning(site):
    assert site.warnings == ""


def test_clause_shows_its_parts(site):
    page = site.page("tiny.html")
    box = page[page.index('id="TINY-1"') : page.index('id="TINY-2"')]
    words = text_of(box)
    for part in ("The first clause", "MUST", "profile core", "observes sharing"):
        assert part in words
    assert "<strong>words</strong>" in box
    assert "Why. The reasons." in words


def test_clause_links_to_tests_code_and_mutants(site):
    box = site.page("tiny.html").partition('id="TINY-2"')[0]
    assert f'href="source/{CHAPTERS}/test_tiny.py.html#L2"' in box
    assert "receiver sees the write" in box
    assert 'href="source/reference/sharedtensor/memory.py.html#L5"' in box
    assert "memory.Memory.move" in text_of(box)
    assert "keeps_a_copy Keeps a copy of each tensor." in text_of(box)
    assert 'id="L5"' in site.page("source/reference/sharedtensor/memory.py.html")


def test_mutant_links_to_what_it_replaces(site):
    page = site.page("tiny.html")
    for line, name in {5: "memory.Memory.move", 9: "memory.send"}.items():
        target = f"source/reference/sharedtensor/memory.py.html#L{line}"
        links = [
            text_of(rest.partition("</a>")[0].partition(">")[2])
            for rest in page.split(f'href="{target}"')[1:]
        ]
        assert name in links
    assert "Sends nothing. Replaces memory.send ." in text_of(page)
    assert 'id="L9"' in site.page("source/reference/sharedtensor/memory.py.html")


def test_clause_without_code_gives_its_reason(site):
    words = text_of(site.page("tiny.html").partition('id="TINY-2"')[2])
    assert "Reference No code: The kernel does it." in words


def test_clause_without_backing_says_so_and_is_a_warning(site_of):
    source = CHAPTER.replace(":no-code: The kernel does it.\n", "")
    tests, mutants = f"{CHAPTERS}/test_tiny.py", f"{MUTANTS}/tiny.py"
    site = site_of(
        {
            CHAPTER_FILE: source,
            tests: tiny_project.FILES[tests].partition("\n\n")[0],
            mutants: tiny_project.FILES[mutants].partition("\n\n")[0],
        }
    )
    words = text_of(site.page("tiny.html").partition('id="TINY-2"')[2])
    assert "no test cites this clause" in words
    assert "no mutant breaks this clause" in words
    assert "no code of the reference cites this clause" in words
    for complaint in ("has no test", "has no mutant", "is cited by no code"):
        assert f"tiny.md:17: WARNING: TINY-2 {complaint}" in site.warnings


def test_promise_lists_its_clauses_or_the_reason(site):
    page = site.page("promises.html")
    assert 'href="tiny.html#TINY-1"' in page
    assert "Informative. Nothing can be seen of it." in text_of(page)


def test_index_lists_all_clauses_in_order(site):
    page = site.page("tables.html")
    assert re.findall(r'href="tiny.html#(TINY-\d)"', page) == ["TINY-1", "TINY-2"]


def test_matrix_without_reports_says_so(site):
    assert "there is nothing to show" in text_of(site.page("tables.html"))


def test_verdicts_are_shown_in_words_with_their_evidence(judged):
    words = text_of(judged.page("tiny.html"))
    assert "good 7.5 ✓ pass in 1 case" in words
    assert "bad 7.5 ✗ fail, known in 1 case" in words
    assert "It keeps a copy." in words
    assert "expected 40, got 2" in words


def test_verdict_on_another_text_is_marked(judged):
    box = judged.page("tiny.html")
    assert text_of(box).count("Judged on another text of this clause.") == 1


def test_clause_that_is_not_claimed_was_judged_on_no_text(judged):
    assert "without" in judged.page("tables.html")
    assert "behind-TINY-1-bad" in judged.page("tables.html")
    assert "behind-TINY-1-without" not in judged.page("tables.html")


def test_broken_cell_of_the_matrix_links_to_the_evidence(judged):
    assert 'href="tiny.html#TINY-1-bad"' in judged.page("tables.html")
    assert 'id="TINY-1-bad"' in judged.page("tiny.html")


def test_reports_can_be_downloaded(judged):
    copies = [path.name for path in (judged.folder / "_downloads").rglob("*.jsonl")]
    names = ("bad", "chance", "good", "without")
    assert sorted(copies) == [f"{name}.jsonl" for name in names]


def test_known_deviation_that_did_not_show_is_broken_in_the_matrix(judged):
    page = judged.page("tables.html")
    behind = page[page.index('id="behind-TINY-1-chance"') :].partition("</div>")[0]
    words = text_of(f"<div {behind}")
    assert "TINY-1 in chance 7.5 : ✗ held this time in 1 case" in words
    assert "did not show in this one" in words
    assert "A thread may be faster. Known since 2026-01-01." in words
    assert page.count('<td class="broken">') == 2
    assert page.count('<td class="held">') == 1


def test_known_deviation_that_did_not_show_is_told_of_its_clause(judged):
    words = text_of(judged.page("tiny.html").partition('id="TINY-2"')[0])
    assert "chance 7.5 ✗ held this time, known in 1 case" in words
    assert "A thread may be faster." in words
    assert "good 7.5 ✓ pass in 1 case" in words


def test_incomplete_report_stops_the_build(site_of, tmp_path):
    from sphinx.errors import ExtensionError

    write_report(tmp_path, "bad", Verdict.FAIL, {})
    path = tmp_path / "docs" / "reports" / "bad.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:-1]), encoding="utf-8")
    with pytest.raises(ExtensionError, match="was cut short"):
        site_of()


def clause_block(id, level="MUST", title=":title: A clause\n", why="Why. It is."):
    """Return a clause of the tiny chapter, with one of its parts changed."""
    head = f"```{{clause}} {id}\n{title}:level: {level}\n:profile: core\n"
    return f"\n{head}:observes: values\n:promises: P77\n\nWords.\n\n{why}\n```\n"


FLAWED = {
    CHAPTER_FILE: CHAPTER
    + "\nSee {clause}`TINY-9` and {source}`reference/sharedtensor/nothing.py`.\n"
    + clause_block("TINY-2")
    + clause_block("TINY-3", level="MIGHT")
    + clause_block("TINY-4", why="")
    + clause_block("TINY-5", title=""),
    "docs/promises.md": (
        "# Promises\n\n```{promise} P01\n:source: https://acme.org/docs\n"
        ":informative: Wrongly.\n\nIt works.\n```\n\n"
        "```{promise} P02\n:source: https://acme.org/more\n\nIt is nice.\n```\n\n"
        "```{promise} P03\n:informative: Nothing shows it.\n\nIt is safe.\n```\n"
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
    ],
)
def test_flaw_is_a_warning(flawed, site, complaint):
    assert complaint in flawed
    assert complaint not in site.warnings


def test_what_only_looks_like_a_clause_is_no_flaw(flawed):
    assert "UTF-8" not in flawed
    assert "the promise P02 needs a :source:" not in flawed


def test_docstring_on_a_page_links_to_the_clauses_it_cites(site_of, tmp_path):
    package = str(tmp_path / "reference" / "sharedtensor")
    changed = {
        "docs/conf.py": tiny_project.FILES["docs/conf.py"]
        + f"import sys\nsys.path.insert(0, {package!r})\n"
        + 'clauses_chapters = ["TINY"]\n',
        "docs/tables.md": (
            "# Code\n\n```{eval-rst}\n.. autofunction:: tiny_memory.move\n```\n"
        ),
        "reference/sharedtensor/tiny_memory.py": (
            'def move():\n    """Move UTF-8 text. Clause TINY-1."""\n'
        ),
    }
    site = site_of(changed)
    assert site.warnings == ""
    assert 'href="tiny.html#TINY-1"' in site.page("tables.html")


def test_changed_test_is_shown_when_the_site_is_built_again(site_of):
    site_of()
    file = f"{CHAPTERS}/test_tiny.py"
    renamed = tiny_project.FILES[file].replace("sees_the_write", "reads_the_write")
    assert "receiver reads the write" in site_of({file: renamed}).page("tiny.html")


def test_list_of_pages_is_made_once_for_each_depth_of_source_pages(build):
    from clauses.pages import Navigation

    navigation, made = Navigation(), []

    def shown_on(page):
        context = {"toctree": lambda **options: made.append(page) or f"as on {page}"}
        navigation.share(None, page, "page.html", context, None)
        return context["toctree"](collapse=False)

    assert shown_on("source/spec/tiny.md") == "as on source/spec/tiny.md"
    assert shown_on("source/docs/conf.py") == "as on source/spec/tiny.md"
    assert shown_on("source/docs/_ext/pages.py") == "as on source/docs/_ext/pages.py"
    assert shown_on("spec/tiny") == "as on spec/tiny"
    assert shown_on("spec/other") == "as on spec/other"
    assert "source/docs/conf.py" not in made


def test_each_chapter_of_the_spec_has_a_page():
    root = Path(__file__).parents[2]
    chapters = {path.name for path in (root / "spec").glob("*.md")}
    pages = {path.name for path in (root / "docs" / "spec").glob("*.md")}
    assert chapters <= pages
