"""What readers come for, each path as one walks it."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from urllib.parse import quote_plus

import pytest
import sharedtensor_conformance
from screens import PHONE, WIDE
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.report.page import page as report_page
from sharedtensor_conformance.report.run_view import RunView

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
import report_samples as samples

CLAUSES = load_clauses()
CAUSES = Path(sharedtensor_conformance.__file__).parent / "expectations" / "causes"
DOCS = Path(__file__).parents[2] / "docs"
ROWS = "table.clause-matrix tbody tr:not(.chapter)"


def visible_rows(page):
    return page.locator(f"{ROWS}:visible").count()


def test_from_the_front_page_to_a_broken_clause_of_torch(opened):
    page = opened("index.html")
    page.locator('.field-bar a.breaks-docs[title^="torch:"]').click()
    page.wait_for_url("**/matrix.html?implementation=torch&verdict=breaks-docs")
    assert page.locator("select[name=verdict]").input_value() == "breaks-docs"
    cell = page.get_by_role("button", name=re.compile("^GRAD-2 in torch: "))
    cell.click()
    box = page.locator("#behind-GRAD-2-torch")
    assert "sends requires_grad but not .grad" in box.inner_text()
    assert "Recorded on 2026-11-21" in box.inner_text()
    box.get_by_role("link", name="Evidence").click()
    page.wait_for_url("**/spec/GRAD-2.html#GRAD-2-torch")
    box = page.locator("#GRAD-2-torch")
    program = (CAUSES / "torch/grad_present_is_not_sent.py").read_text()
    assert program.strip() in box.inner_text()


def test_page_of_a_clause_leads_to_its_chapter_and_to_the_next_clause(opened):
    page = opened("spec/grad.html#GRAD-2-torch")  # an address of earlier versions
    page.locator("#GRAD-2-torch").click()
    page.wait_for_url("**/spec/GRAD-2.html#GRAD-2-torch")
    assert page.locator("#GRAD-2-torch").is_visible()
    cited = page.locator(".clause-backing .citations").first
    assert not cited.is_visible()
    page.get_by_text("How it is tested").click()
    assert cited.is_visible()
    page.locator(".clause-nav").get_by_role("link", name="GRAD-3").click()
    page.wait_for_url("**/spec/GRAD-3.html")
    page.locator(".clause-nav").get_by_role("link", name="GRAD: ").click()
    page.wait_for_url("**/spec/grad.html#GRAD-3")


def test_each_clause_has_a_page_with_its_text(opened, folder):
    listed = json.loads((folder / "clauses.json").read_text(encoding="utf-8"))
    assert {one["page"] for one in listed} == {f"spec/{id}.html" for id in CLAUSES}
    page = opened("spec/LIFE-7.html")
    assert page.locator("h1").inner_text().startswith("LIFE-7")
    about = page.locator("meta[name=description]").get_attribute("content")
    assert about.split()[:4] == page.locator(".clause-text").inner_text().split()[:4]


@pytest.mark.parametrize("path", ["matrix.html", "guides/reports.html"])
def test_page_says_what_it_is_about_where_its_address_is_pasted(opened, path):
    page = opened(path)
    shown = page.locator("meta[property='og:title']").get_attribute("content")
    assert page.locator("h1").inner_text().startswith(shown)
    about = page.locator("meta[name=description]").get_attribute("content")
    first = page.locator("article section > p").first.inner_text()
    assert about.split()[:4] == first.split()[:4]


def test_figures_of_the_front_page_are_the_rows_of_the_matrix(opened):
    page = opened("index.html")
    links = page.locator(".field-bar a").all()
    told = [(one.get_attribute("title"), one.get_attribute("href")) for one in links]
    assert len(told) >= 10
    for title, address in told:
        count = int(re.search(r": (\d+) ", title)[1])
        assert visible_rows(opened(address)) == count, title


def test_broken_clauses_are_those_of_all_kinds(opened):
    kinds = ("breaks-docs", "differs", "broken-otherwise")
    for name in ("torch", "stdlib"):
        address = f"matrix.html?implementation={name}&verdict="
        counts = [visible_rows(opened(address + kind)) for kind in kinds]
        assert sum(counts) == visible_rows(opened(address + "broken")) > 0


@pytest.mark.parametrize(
    ("way", "title"),
    [
        ("See the results", "Clause by implementation"),
        ("I have an error", "Errors and remedies"),
        ("Test my library", "Build an implementation"),
    ],
)
def test_front_page_has_three_ways_in(opened, way, title):
    page = opened("index.html")
    card = page.locator(".sd-card", has_text=way)
    assert card.bounding_box()["y"] < WIDE["height"]
    card.click()
    assert page.locator("h1").inner_text().startswith(title)


def test_front_page_counts_what_is_recorded(opened):
    page = opened("index.html")
    told = page.locator(".front-figures").inner_text()
    assert f"{len(CLAUSES)} clauses" in told
    assert re.search(r"\d,\d{3} cases", told)


def test_filtered_matrix_is_shared_by_its_address(opened):
    page = opened("matrix.html")
    assert visible_rows(page) == len(CLAUSES)
    page.locator("select[name=implementation]").select_option("torch")
    page.locator("select[name=verdict]").select_option("broken")
    page.locator("select[name=level]").select_option("SHOULD")
    page.locator("input[name=text]").fill("manager")
    shown = page.locator(f"{ROWS}:visible th a").all_inner_texts()
    assert shown
    assert {CLAUSES[id].level for id in shown} == {"SHOULD"}
    assert page.locator("output").inner_text() == (
        f"{len(shown)} of {len(CLAUSES)} clauses"
    )
    again = opened("matrix.html" + page.url.partition("matrix.html")[2])
    assert again.locator(f"{ROWS}:visible th a").all_inner_texts() == shown
    assert again.locator(".clause-matrix thead th:visible").all_inner_texts() == [
        "Clause",
        "torch",
    ]
    again.get_by_role("button", name="Clear").click()
    again.wait_for_function("location.search === ''")
    assert visible_rows(again) == len(CLAUSES)


def test_what_breaks_with_a_strategy_under_a_start_method_is_found(opened, folder):
    page = opened("implementations/torch.html")
    table = page.locator("table.by-setting")
    column = table.locator("thead th").all_inner_texts().index("file_system")
    row = table.locator("tbody tr", has=page.get_by_text("spawn", exact=True))
    row.locator("td").nth(column).locator("a").click()
    page.wait_for_url("**&strategy=file_system&start_method=spawn")
    shown = set(page.locator(f"{ROWS}:visible th a").all_inner_texts())
    recorded = json.loads((folder / "implementations/torch.json").read_text())
    broken = {
        id
        for id, one in recorded["clauses"].items()
        if "spawn" in one.get("broken_with", {}).get("file_system", [])
    }
    assert shown == broken
    page.locator("select[name=verdict]").select_option("held")
    held = set(page.locator(f"{ROWS}:visible th a").all_inner_texts())
    assert held
    assert not held & broken
    page.get_by_role("button", name="Clear").click()
    page.wait_for_function("location.search === ''")
    assert visible_rows(page) == len(CLAUSES)


def test_rows_with_different_verdicts_are_of_libraries_that_people_choose(opened):
    page = opened("matrix.html?rows=differ")
    heads = page.locator(".clause-matrix thead th").all()
    chosen = [
        n
        for n, head in enumerate(heads)
        if "apart" not in (head.get_attribute("class") or "")
    ]
    rows = page.locator(f"{ROWS}:visible").all()
    assert 0 < len(rows) < len(CLAUSES)
    for row in rows[:5]:
        classes = [
            row.locator("th, td").nth(n).get_attribute("class") or ""
            for n in chosen[1:]
        ]
        assert any("held" in one for one in classes)
        assert any("broken" in one for one in classes)


def test_newest_release_is_counted_as_on_the_rest_of_the_page(opened):
    page = opened("implementations/torch.html")
    told = page.locator(".implementation-figures a b").all_inner_texts()
    held, *broken = [int(one.split()[1]) for one in told if one[0] in "✓✗≠"]
    bar = page.locator('figure[aria-label$="by release"] .field-bar').last
    parts = bar.locator("div").all_inner_texts()
    assert [int(re.search(r"\d+", one)[0]) for one in parts[:2]] == [held, sum(broken)]


def test_filter_that_matches_nothing_shows_nothing(opened):
    page = opened("matrix.html?text=no-such-words")
    assert visible_rows(page) == 0
    assert page.locator("output").inner_text() == f"0 of {len(CLAUSES)} clauses"


def test_unknown_filter_in_an_address_is_ignored(opened):
    assert visible_rows(opened("matrix.html?verdict=splendid")) == len(CLAUSES)


def test_report_to_a_project_is_copied_as_markdown(opened):
    allowed = ["clipboard-read", "clipboard-write"]
    page = opened("implementations/torch.html", permissions=allowed)
    page.locator("tr", has_text="GRAD-3").get_by_role("link", name="drops its").click()
    page.wait_for_url("**/upstream/torch-grad-present-is-not-sent.html")
    issue = page.get_by_role("link", name="Open an issue at PyTorch")
    assert "title=Sending%20a%20tensor" in issue.get_attribute("href")
    box = page.locator("article details")
    box.locator("summary").click()
    box.hover()
    box.locator("button.copybtn").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("# Sending a tensor drops its `.grad`")
    assert (CAUSES / "torch/grad_present_is_not_sent.py").read_text() in copied
    assert "- GRAD-2: " in copied


def test_matrix_is_worked_by_keys(opened):
    page = opened("matrix.html")
    before = visible_rows(page)
    chapter = page.get_by_role("button", name="API: ")
    chapter.focus()
    page.keyboard.press("Enter")
    assert chapter.get_attribute("aria-expanded") == "false"
    count = sum(clause.chapter == "API" for clause in CLAUSES.values())
    assert visible_rows(page) == before - count
    cell = page.get_by_role("button", name=re.compile("^GRAD-2 in torch: "))
    cell.focus()
    page.keyboard.press("Enter")
    box = page.locator("#behind-GRAD-2-torch")
    assert box.is_visible()
    page.keyboard.press("Escape")
    assert not box.is_visible()


def test_heads_of_the_matrix_stay_in_sight(opened):
    page = opened("matrix.html")
    box = page.locator(".matrix-cells")
    head = page.get_by_role("columnheader", name="torch", exact=True)
    before = head.bounding_box()
    box.evaluate("box => box.scrollTop = 3000")
    assert head.bounding_box() == before


def test_matrix_is_a_plain_table_without_scripts(opened):
    page = opened("matrix.html?verdict=broken", java_script_enabled=False)
    assert visible_rows(page) == len(CLAUSES)
    assert not page.locator("form.matrix-filter").is_visible()
    page.locator('[popovertarget="behind-GRAD-2-torch"]').first.click()
    assert page.locator("#behind-GRAD-2-torch").is_visible()


def test_link_to_a_chapter_of_the_matrix_works_without_scripts(opened):
    page = opened("index.html", java_script_enabled=False)
    page.get_by_text("By chapter", exact=True).click()
    page.locator('.field-table a[aria-label^="LIFE, torch:"]').click()
    page.wait_for_url("**#matrix-LIFE")
    assert page.locator("#matrix-LIFE tr.chapter").is_visible()


def test_reader_changes_to_another_version(opened):
    page = opened("spec/grad.html")
    box = page.locator("details.versions")
    box.locator("summary").click()
    links = box.get_by_role("link")
    assert links.all_inner_texts() == ["0.2.0", "0.1.0", "dev"]
    assert box.locator("[aria-current]").inner_text() == "dev"
    links.first.click()
    page.wait_for_url("**/0.2.0/")
    assert page.locator("h1").inner_text().startswith("shared-tensor-spec")
    box.locator("summary").click()  # it is closed on a new page
    assert box.locator("[aria-current]").inner_text() == "0.2.0"


def test_first_page_leads_to_the_newest_release(opened):
    page = opened("../")
    page.wait_for_url("**/0.2.0/")


@pytest.mark.parametrize("missing", ["grad-2", "spec/GRAD-2", "c/Grad-2.html"])
def test_missing_page_leads_to_the_clause_and_the_search(
    opened, address, published, missing
):
    page = opened("index.html")
    there = published / "404.html"
    page.route(f"{address}/{missing}", lambda route: route.fulfill(path=there))
    page.goto(f"{address}/{missing}")
    search = page.get_by_role("link", name="Search the site").get_attribute("href")
    assert re.search(r"/dev/search\.html\?q=grad-2$", search, re.IGNORECASE)
    page.get_by_role("link", name="GRAD-2", exact=True).click()
    page.wait_for_url(f"{address}/spec/GRAD-2.html")
    assert page.locator("h1").inner_text().startswith("GRAD-2")


FIRST = 3
"""So many results of a search are seen at once on a phone."""


def results(page):
    """Return the links to what a search found, when all are there."""
    page.wait_for_selector("#search-results .search-summary:has-text('found')")
    return page.locator("#search-results li a")


@pytest.mark.parametrize("id", ["GRAD-2", "fd-7", "LIFE-16"])
def test_search_finds_the_page_of_a_clause_by_its_id(opened, id):
    page = opened(f"search.html?q={id}")
    results(page).first.click()
    page.wait_for_url(f"**/spec/{id.upper()}.html*")
    assert page.locator("h1").inner_text().startswith(id.upper())


@pytest.mark.parametrize(
    ("words", "id"),
    [
        ("too many open files", "FAIL-1"),
        ("received 0 items of ancdata", "ENV-2"),
        ("Cowardly refusing to serialize", "GRAD-5"),
        ("OSError: [Errno 24] Too many open files", "FAIL-1"),
        ("DataLoader worker is killed by signal: Bus error", "FAIL-4"),
        ("leaked shared_memory objects to clean up at shutdown", "LIFE-9"),
        ("RuntimeError: CUDA error: invalid resource handle", "CUDA-18"),
        ("DataLoader hangs with num_workers", "LOAD-4"),
    ],
)
def test_error_message_leads_to_its_clause(opened, words, id):
    page = opened(f"search.html?q={quote_plus(words)}")
    found = results(page).all()[:FIRST]
    addresses = [one.get_attribute("href") for one in found]
    entry = next(one for one in addresses if one.startswith("guides/messages.html#"))
    found[addresses.index(entry)].click()
    page.wait_for_url("**/guides/messages.html#*")
    page.locator("section:target").get_by_text(id, exact=True).first.click()
    page.wait_for_url(f"**/spec/{id}.html")


RESULTS = """texts => texts.map(text => {
    const found = Search._performSearch(...Search._parseQuery(text));
    return found.reverse().map(([page, , anchor]) => page + anchor);
})"""
"""Returns the addresses that a search for each text finds, the first one first."""


def test_search_for_a_whole_message_finds_its_entry_first(opened):
    with (DOCS / "guides" / "messages.toml").open("rb") as file:
        groups = tomllib.load(file)["group"]
    found = [
        text for group in groups for one in group["message"] for text in one["texts"]
    ]
    texts = [text for text in found if "..." not in text and ";" not in text]
    assert len(texts) >= 30
    page = opened("search.html?q=shared")
    results(page)
    firsts = [addresses[0] for addresses in page.evaluate(RESULTS, texts)]
    lost = dict(zip(texts, firsts, strict=True))
    wrong = {k: v for k, v in lost.items() if not v.startswith("guides/messages#")}
    assert wrong == {}


@pytest.mark.parametrize("asked", ["id", "title", "plain_text"])
def test_search_finds_the_page_of_each_clause_above_its_chapter(opened, asked):
    page = opened("search.html?q=shared")
    results(page)
    texts = [getattr(clause, asked).lower() for clause in CLAUSES.values()]
    found = page.evaluate(RESULTS, texts)
    wrong = []
    for clause, addresses in zip(CLAUSES.values(), found, strict=True):
        pages = [address.partition("#")[0] for address in addresses]
        chapter, own = f"spec/{clause.file.removesuffix('.md')}", f"spec/{clause.id}"
        if asked == "plain_text":  # other pages may have its words in their titles
            pages = [one for one in pages if one in (own, chapter)]
        wrong += [] if pages[:1] == [own] else [clause.id]
    assert wrong == []


TRACEBACK = """\
  File "site-packages/torch/utils/data/dataloader.py", line 1308, in _try_get_data
    data = self._data_queue.get(timeout=timeout)
  File "site-packages/torch/multiprocessing/reductions.py", line 541
RuntimeError: unable to open shared memory object </torch_59_4_7> in read-write mode
"""


@pytest.mark.parametrize(
    ("pasted", "anchor"),
    [
        (TRACEBACK, "unable-to-open-shared-memory-object"),
        (
            "RuntimeError: DataLoader worker (pid 11011) is killed by signal: Bus "
            "error. It is possible that dataloader's workers are out of shared memory. "
            "Please try to raise your shared memory limit.",
            "dataloader-worker-is-killed-by-signal-bus-error",
        ),
        (
            "/usr/lib/python3.12/multiprocessing/resource_tracker.py:254: UserWarning: "
            "resource_tracker: There appear to be 3 leaked shared_memory objects to "
            "clean up at shutdown\n  warnings.warn('resource_tracker: There appear",
            "there-appear-to-be-leaked-shared-memory-objects",
        ),
    ],
)
def test_pasted_traceback_leads_to_its_entry(opened, pasted, anchor):
    page = opened("guides/messages.html")
    page.get_by_label("Paste an error message or a traceback").fill(pasted)
    page.locator(".message-results a").first.click()
    page.wait_for_url(f"**/guides/messages.html#{anchor}*")
    assert page.locator("section:target").get_by_text("What to do today").is_visible()


def test_what_is_no_message_finds_none(opened):
    page = opened("guides/messages.html")
    page.get_by_label("Paste an error message or a traceback").fill("It works well.")
    assert page.locator(".message-results a").count() == 0


@pytest.fixture(scope="module")
def report_file(tmp_path_factory):
    """The page of a report in which forty clauses are broken, by two causes."""
    musts = [id for id, one in CLAUSES.items() if one.level == "MUST"]
    ids = [id for id in musts if CLAUSES[id].profile != "cuda"][:40]
    broken = [
        samples.case(
            id,
            "fail",
            evidence=f"the {'owner' if n % 2 else 'peer'} found: got {n}, not {n + 1}"
            if n < 30
            else f"{id} was not refused",
        )
        for n, id in enumerate(ids)
    ]
    held = [samples.case(id) for id in CLAUSES if id not in ids]
    claims = {one.profile for one in CLAUSES.values()} - {"cuda"}
    report = samples.report([*broken, *held], clauses=CLAUSES, claims=sorted(claims))
    file = tmp_path_factory.mktemp("report") / "report.html"
    view = RunView(report.run, report.cases, report.summary, CLAUSES)
    file.write_text(report_page(view), encoding="utf-8")
    return file.as_uri()


@pytest.mark.parametrize("viewport", [PHONE, WIDE])
def test_report_of_forty_broken_clauses_leads_to_its_first_cause(
    opened, report_file, viewport
):
    page = opened(report_file, viewport=viewport)
    assert "40 clauses broken (new)" in page.locator(".said").inner_text()
    page.locator("a[href='#cause-1']").click()
    first = page.locator("#cause-1")
    assert first.locator("pre").first.is_visible()
    top = round(first.bounding_box()["y"])  # a page scrolls by whole pixels
    assert 0 <= top < viewport["height"]
    assert "other clauses fail in the same way" in first.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
