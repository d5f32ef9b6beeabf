"""Every page: legible for everybody, complete, and with links that lead somewhere."""

from __future__ import annotations

import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import pytest
from screens import PHONE, WIDE
from sharedtensor_conformance.clauses import load_clauses

PAGES = (
    "index.html",
    "matrix.html",
    "implementations/index.html",
    "implementations/torch.html",
    "implementations/torch-patched.html",
    "implementations/reference.html",
    "upstream/index.html",
    "upstream/torch.html",
    "upstream/torch-grad-present-is-not-sent.html",
    "upstream/mindspore.html",
    "upstream/shared-ndarray2.html",
    "upstream/tensordict.html",
    "spec/index.html",
    "spec/grad.html",
    "spec/fault.html",
    "spec/GRAD-2.html",
    "spec/LIFE-7.html",
    "spec/clauses.html",
    "spec/promises.html",
    "spec/changes.html",
    "message-flow.html",
    "guides/cuda-protocol.html",
    "guides/messages.html",
    "guides/reports.html",
    "guides/faults.html",
    "guides/what-the-suite-found.html",
    "guides/add-implementation.html",
    "benchmark.html",
    "trust.html",
    "soak.html",
    "state-machines.html",
    "glossary.html",
    "versions.html",
    "api.html",
    "search.html",
    "source/reference/sharedtensor/protocol.py.html",
)
"""Each page that is unlike the others."""

UNFOLD = (
    "() => document.querySelectorAll('details').forEach(box => { box.open = true })"
)
"""Opens what is folded, so that it is looked at as well."""

LARGEST = 500_000
"""The largest size of the matrix, in bytes."""


CUT_OFF = """() => {
  const scrolls = (box) => ["auto", "scroll"].includes(getComputedStyle(box).overflowX);
  const inside = (box) =>
    !box.matches("article") && (scrolls(box) || inside(box.parentElement));
  return [...document.querySelectorAll("article *")]
    .filter((box) => box.getBoundingClientRect().right > innerWidth + 1)
    .filter((box) => box.checkVisibility() && !inside(box))
    .map((box) => box.outerHTML.slice(0, 120));
}"""
"""What of a page lies outside of the window and in no box that scrolls."""


ENDS = """() => {
  const text = document.querySelector("article").getBoundingClientRect();
  return [text.bottom, document.documentElement.scrollHeight];
}"""
"""Where the text of a page ends, and the page itself."""


@pytest.mark.parametrize("page", PAGES)
def test_page_fits_a_phone(opened, page):
    shown = opened(page, viewport=PHONE)
    shown.evaluate(UNFOLD)
    assert shown.evaluate(CUT_OFF) == []


@pytest.mark.parametrize("viewport", [PHONE, WIDE])
@pytest.mark.parametrize("page", PAGES)
def test_page_ends_with_its_text(opened, page, viewport):
    shown = opened(page, viewport=viewport)
    bottom, height = shown.evaluate(ENDS)
    assert height < max(bottom, viewport["height"]) + viewport["height"] / 2


@pytest.mark.parametrize(
    ("scheme", "viewport"), [("light", WIDE), ("dark", WIDE), ("light", PHONE)]
)
@pytest.mark.parametrize("page", PAGES)
def test_page_is_accessible(opened, page, scheme, viewport):
    from axe_playwright_python.sync_playwright import Axe

    shown = opened(page, color_scheme=scheme, viewport=viewport)
    shown.evaluate(UNFOLD)
    found = Axe().run(shown, options={"resultTypes": ["violations"]})
    assert complaints(found.response) == []


def complaints(response):
    """Return what axe calls serious or critical, with the elements."""
    return [
        f"{one['id']}: {[node['html'][:150] for node in one['nodes'][:3]]}"
        for one in response["violations"]
        if one["impact"] in ("serious", "critical")
    ]


OUTSIDE = """() => [...document.querySelectorAll("svg.sequence")].flatMap(svg => {
  const box = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text, rect, path")].filter(part => {
    const place = part.getBoundingClientRect();
    return place.left < box.left - 1 || place.right > box.right + 1
      || place.top < box.top - 1 || place.bottom > box.bottom + 1;
  }).map(part => part.outerHTML);
})"""
"""What of the pictures lies outside of them, and so is not seen."""


@pytest.mark.parametrize(
    ("page", "pictures"),
    [
        ("message-flow.html", 4),
        ("guides/cuda-protocol.html", 1),
        ("state-machines.html", 4),
        ("spec/fault.html", 4),
    ],
)
def test_pictures_are_whole_and_have_the_colours_of_the_page(opened, page, pictures):
    colours = {}
    for scheme in ("light", "dark"):
        shown = opened(page, color_scheme=scheme)
        assert shown.locator("svg.sequence").count() == pictures
        assert shown.evaluate(OUTSIDE) == []
        text = shown.locator("svg.sequence text").first
        colours[scheme] = text.evaluate("text => getComputedStyle(text).fill")
    assert colours["light"] != colours["dark"]


def test_matrix_is_small(folder):
    assert (folder / "matrix.html").stat().st_size < LARGEST


def test_specification_is_on_one_page(opened):
    page = opened("spec/one-page.html")
    ids = set(page.locator("section.clause").evaluate_all("all => all.map(e => e.id)"))
    assert ids == set(load_clauses())
    assert page.locator(".clause-backing").count() == 0
    page.emulate_media(media="print")
    assert not page.locator(".sidebar-drawer").is_visible()


def test_specification_is_there_as_json(folder):
    found = json.loads((folder / "clauses.json").read_text(encoding="utf-8"))
    clauses = load_clauses()
    assert {one["id"]: one["text"] for one in found} == {
        id: clause.text for id, clause in clauses.items()
    }


def test_list_for_programs_names_pages_that_exist(folder):
    text = (folder / "llms.txt").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert "matrix.html" in targets
    assert len(targets) > 40
    assert [one for one in targets if not (folder / one).is_file()] == []


class Reader(HTMLParser):
    """Collects the links and the anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: list[str] = []
        self.drawings = 0  # the ids in a drawing are no anchors

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.drawings += tag == "svg"
        if given.get("id") and not self.drawings:
            self.anchors.append(given["id"])
        for name in ("href", "src"):
            if given.get(name):
                self.links.add(given[name])

    def handle_endtag(self, tag):
        self.drawings -= tag == "svg"


@cache
def read(page: Path) -> Reader:
    reader = Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    return reader


@cache
def anchors_of(page: Path) -> frozenset[str]:
    return frozenset(re.findall(r'\bid="([^"]+)"', page.read_text(encoding="utf-8")))


def problem_of(link: str, page: Path) -> str:
    """Return what is wrong with a link of a page; empty where nothing is."""
    parts = urlparse(link)
    if parts.scheme or link.startswith("//"):
        return ""
    target = page.parent / unquote(parts.path) if parts.path else page
    if not target.is_file():
        return f"{page.name}: there is no {link}"
    anchor = unquote(urldefrag(link).fragment)
    if anchor and target.suffix == ".html" and anchor not in anchors_of(target):
        return f"{page.name}: there is no anchor for {link}"
    return ""


def written(folder: Path) -> list[Path]:
    """Return the pages but for those that show source files."""
    return [one for one in folder.rglob("*.html") if "source" not in one.parts]


def test_no_link_and_no_anchor_is_broken(folder):
    pages = written(folder)
    assert len(pages) > 50
    problems = {problem_of(link, page) for page in pages for link in read(page).links}
    assert sorted(problems - {""}) == []


def test_no_anchor_is_there_twice(folder):
    twice = {
        f"{page.name}#{id}"
        for page in written(folder)
        for id in read(page).anchors
        if read(page).anchors.count(id) > 1
    }
    assert twice == set()
