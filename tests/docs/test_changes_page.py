"""The page of changes and its feed: what was recorded, and which clauses flipped."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import tiny_project
from tiny_report import text_of

ROOT = Path(__file__).parents[2]
ATOM = "{http://www.w3.org/2005/Atom}"
FIRST, LATER = "2026-01-01T10:00:00Z", "2026-02-01T10:00:00Z"


@pytest.fixture(scope="module")
def recordings(extension):
    return extension("records.recordings")


@pytest.fixture(scope="module")
def recorded(recordings):
    """Return what a report says."""

    def made(started=FIRST, *, held=(), broken=(), version="1.0", report="tiny"):
        given = (report, "tiny", version, started, list(held), list(broken))
        return recordings.Recorded(*given)

    return made


PAGE = "```{record} changes reports/changes.json\n```\n"
NOTHING = {"reports": {}, "recordings": []}


def test_record_is_that_of_the_committed_reports(recordings):
    record = recordings.read(ROOT / "docs")
    found = recordings.updated(record, recordings.committed(ROOT))
    assert found == record, "run python ci/readme_results.py"
    text = (ROOT / "docs" / recordings.FILE).read_text(encoding="utf-8")
    assert recordings.text_of(record) == text


def test_each_committed_report_was_recorded(recordings):
    newest = {}
    for one in reversed(recordings.read(ROOT / "docs")["recordings"]):
        newest[one["report"]] = one
    for now in recordings.committed(ROOT):
        one = newest[now.report]
        assert (one["version"], one["started"]) == (now.version, now.started)
        assert (one["held"], one["broken"]) == (len(now.held), len(now.broken))


def test_recording_has_what_flipped_and_not_what_is_new(recordings, recorded):
    before = recorded(held=["A-1", "A-2", "A-3"], broken=["A-4"])
    now = recorded(LATER, held=["A-1", "A-4", "A-6"], broken=["A-2", "A-5"])
    record = recordings.updated(recordings.updated(NOTHING, [before]), [now])
    newest, first = record["recordings"]
    assert (newest["newly_broken"], newest["newly_held"]) == (["A-2"], ["A-4"])
    assert (newest["held"], newest["broken"], newest["before"]) == (3, 2, "1.0")
    assert (first["newly_broken"], first["newly_held"]) == ([], [])
    assert first["before"] == ""
    assert record["reports"]["tiny"]["broken"] == ["A-2", "A-5"]


def test_same_run_is_recorded_once(recordings, recorded):
    record = recordings.updated(NOTHING, [recorded(held=["A-1"])])
    assert recordings.updated(record, [recorded(held=["A-1"])]) == record
    judged_anew = recordings.updated(record, [recorded(broken=["A-1"])])
    assert judged_anew["recordings"] == record["recordings"]
    assert judged_anew["reports"]["tiny"]["broken"] == ["A-1"]


def test_reports_are_compared_with_themselves_alone(recordings, recorded):
    record = recordings.updated(NOTHING, [recorded(held=["A-1"])])
    other = recorded(LATER, broken=["A-1"], report="other")
    newest = recordings.updated(record, [other])["recordings"][0]
    assert (newest["report"], newest["newly_broken"]) == ("other", [])


# The site


@pytest.fixture(scope="module")
def site(recordings, recorded, tmp_path_factory):
    """A site with the page."""
    before = recorded(held=["TINY-1", "GONE-1"], broken=["TINY-2"])
    now = recorded(LATER, held=["TINY-2"], broken=["TINY-1", "GONE-1"], version="2 & 3")
    record = recordings.updated(recordings.updated(NOTHING, [before]), [now])
    conf = tiny_project.FILES["docs/conf.py"]
    changed = {
        "docs/conf.py": conf.replace('"clauses"', '"clauses", "records"')
        + 'project = "tiny-spec"\nauthor = "the authors"\n',
        "docs/index.md": tiny_project.FILES["docs/index.md"].replace(
            "tables\n", "tables\nchanges\n"
        ),
        "docs/changes.md": f"# Changes\n\n{PAGE}",
        "docs/reports/changes.json": recordings.text_of(record),
    }
    root = tmp_path_factory.mktemp("changes")
    tiny_project.write_project(root, changed)
    return tiny_project.build(root)


def test_page_lists_the_recordings_with_links_to_what_flipped(site):
    page = site.page("changes.html")
    assert 'href="TINY-1.html"' in page
    words = text_of(page)
    assert re.search(r"2026-02-01\s+tiny 2 &amp; 3\s+tiny\s+1\.0\s+1\s+2", words)
    assert words.index("2026-02-01") < words.index("2026-01-01")
    assert "TINY-1 , GONE-1" in words


def test_feed_has_what_atom_requires(site):
    feed = ET.fromstring(site.page("changes.xml"))
    assert feed.tag == f"{ATOM}feed"
    entries = feed.findall(f"{ATOM}entry")
    assert len(entries) == 2
    for element in (feed, *entries):
        (id,), (title,), (updated,) = (
            element.findall(f"{ATOM}{name}") for name in ("id", "title", "updated")
        )
        assert id.text.startswith("urn:uuid:")
        assert title.text
        assert datetime.fromisoformat(updated.text).tzinfo is not None
    assert len({one.find(f"{ATOM}id").text for one in (feed, *entries)}) == 3
    assert feed.find(f"{ATOM}author/{ATOM}name").text == "the authors"
    assert feed.find(f"{ATOM}updated").text == LATER
    links = {one.get("rel"): one.get("href") for one in feed.findall(f"{ATOM}link")}
    assert links == {"self": "changes.xml", "alternate": "changes.html"}
    assert all(one.find(f"{ATOM}link").get("rel") == "alternate" for one in entries)


def test_entry_says_what_flipped_with_links(site):
    entry = ET.fromstring(site.page("changes.xml")).find(f"{ATOM}entry")
    title = entry.find(f"{ATOM}title").text
    assert title == "tiny 2 & 3 was recorded: 3 clauses flipped"
    content = entry.find(f"{ATOM}content")
    assert content.get("type") == "html"
    assert "1 held, 2 broken" in content.text
    assert 'href="TINY-1.html"' in content.text
    assert "GONE-1" in content.text


def test_ids_of_the_feed_are_the_same_in_each_build(recordings):
    assert recordings.urn("a", FIRST) == recordings.urn("a", FIRST)
    assert recordings.urn("a", FIRST) != recordings.urn("a", LATER)
