"""Keeps which clauses flipped from one recorded report to the next, and makes the feed.

A new report takes the place of the one before it, and a site is also built where there
is no history. So ``FILE`` has, of each report, which clauses held and were broken, and
of each recording since, what flipped. ``ci/readme_results.py`` adds the reports that
were recorded. The page "Changes" shows the file, and so does an Atom feed (RFC 4287).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from clauses import releases
from clauses.links import Links
from clauses.outcomes import Outcome, outcome_in
from clauses.reports import Shown
from sharedtensor_conformance.evidence import Sources, tests
from sphinx.application import Sphinx

FILE = "reports/changes.json"
"""The record, below ``docs``."""

PAGE, FEED = "changes", "changes.xml"
"""The page "Changes", and the feed beside it."""

ENTRIES = 50
"""How many recordings the feed has."""

ATOM = "http://www.w3.org/2005/Atom"

Record = dict[str, Any]
"""What `FILE` has: each report as it is, and the recordings, newest first."""


@dataclass(frozen=True)
class Recorded:
    """What a committed report says of the clauses.

    Args:
        report: the name of its file, without the ending.
        held: the clauses that held.
        broken: the clauses that are broken, whether or not that was expected.
    """

    report: str
    name: str
    version: str
    started: str
    held: list[str]
    broken: list[str]


def committed(root: Path) -> list[Recorded]:
    """Return what the committed reports say, and the summaries of earlier releases."""
    files = sorted((root / "docs" / "reports").glob("*.jsonl"))
    found = [_of_report(Shown(file, root)) for file in files]
    cited = tests(Sources.of_checkout(root).tests)
    for earlier in releases.read_all(root, (), cited).values():
        found += map(_of_release, earlier)
    return found


def _of_report(shown: Shown) -> Recorded:
    outcomes = {id: outcome_in(shown, id) for id in shown.judgements}
    implementation = shown.run.implementation
    return Recorded(
        shown.file.stem,
        implementation.name,
        implementation.version,
        shown.started,
        [id for id, outcome in outcomes.items() if outcome is Outcome.HELD],
        [id for id, outcome in outcomes.items() if outcome.breaks],
    )


def _of_release(release: releases.Release) -> Recorded:
    states = {id: release.state(id) for id in release.judgements}
    return Recorded(
        f"{releases.FOLDER.name}/{release.file.stem}",
        release.name,
        str(release.version),
        release.started,
        [id for id, state in states.items() if state is releases.State.HELD],
        [id for id, state in states.items() if state.breaks],
    )


def updated(record: Record, found: Iterable[Recorded]) -> Record:
    """Return the record with a recording of each run that it does not have yet."""
    found = sorted(found, key=lambda one: (one.started, one.report))
    known = {(one["report"], one["started"]) for one in record["recordings"]}
    added = [
        recording(one, record["reports"].get(one.report))
        for one in found
        if (one.report, one.started) not in known
    ]
    recordings = [*added[::-1], *record["recordings"]]
    recordings.sort(key=lambda one: str(one["started"]), reverse=True)
    reports = {one.report: asdict(one) for one in sorted(found, key=lambda r: r.report)}
    return {"reports": reports, "recordings": recordings}


def recording(now: Recorded, before: Record | None) -> Record:
    """Return what a report says that the one before it did not."""
    was = before or {"version": "", "held": [], "broken": []}
    return {
        "report": now.report,
        "name": now.name,
        "version": now.version,
        "started": now.started,
        "before": was["version"],
        "held": len(now.held),
        "broken": len(now.broken),
        "newly_broken": [id for id in now.broken if id in was["held"]],
        "newly_held": [id for id in now.held if id in was["broken"]],
    }


def read(docs: Path) -> Record:
    """Return the record below ``docs``."""
    record: Record = json.loads((docs / FILE).read_text(encoding="utf-8"))
    return record


def text_of(record: Record) -> str:
    """Return the record as JSON, with a line for each report and each recording."""
    pairs = record["reports"].items()
    reports = (f"{json.dumps(name)}: {json.dumps(one)}" for name, one in pairs)
    recordings = map(json.dumps, record["recordings"])
    return (
        f'{{"reports": {{\n{_joined(reports)}\n}},\n'
        f'"recordings": [\n{_joined(recordings)}\n]}}\n'
    )


def _joined(lines: Iterable[str]) -> str:
    return ",\n".join(lines)


def update(root: Path) -> None:
    """Add to the record what the committed reports say."""
    docs = root / "docs"
    new = text_of(updated(read(docs), committed(root)))
    (docs / FILE).write_text(new, encoding="utf-8")


# The feed


def feed(record: Record, app: Sphinx) -> bytes:
    """Return the newest recordings as an Atom feed.

    Its addresses are relative: the site has no address of its own. So the entries have
    UUIDs, which are made from their names and days.
    """
    recordings, links = record["recordings"][:ENTRIES], Links(app, PAGE)
    page = app.builder.get_target_uri(PAGE)
    root = _element("feed")
    _add(root, "id", urn("feed"))
    _add(root, "title", f"Changes: {app.config.project}")
    _add(root, "updated", max(one["started"] for one in recordings))
    _add(_add(root, "author"), "name", app.config.author)
    _add(root, "link", rel="self", href=FEED, type="application/atom+xml")
    _add(root, "link", rel="alternate", href=page, type="text/html")
    for one in recordings:
        _add_entry(root, one, links, page)
    return ET.tostring(root, encoding="utf-8", xml_declaration=True)


def urn(*parts: str) -> str:
    """Return the id of the feed or of an entry, the same in each build."""
    name = "/".join(("shared-tensor-spec", "changes", *parts))
    return uuid.uuid5(uuid.NAMESPACE_URL, name).urn


def _add_entry(root: ET.Element, one: Record, links: Links, page: str) -> None:
    entry = _add(root, "entry")
    _add(entry, "id", urn(one["report"], one["started"]))
    _add(entry, "title", f"{one['name']} {one['version']} was recorded: {_said(one)}")
    _add(entry, "updated", one["started"])
    about = links.implementation(one["name"]) or page
    _add(entry, "link", rel="alternate", href=about, type="text/html")
    content = "".join(f"<p>{line}</p>" for line in _lines(one, links.known))
    _add(entry, "content", content, type="html")


def _said(one: Record) -> str:
    count = len(one["newly_broken"]) + len(one["newly_held"])
    return f"{count or 'no'} clause{'' if count == 1 else 's'} flipped"


def _lines(one: Record, linked: Callable[[str], str]) -> Iterator[str]:
    yield f"Clauses: {one['held']} held, {one['broken']} broken."
    for key, said in (("newly_broken", "broken"), ("newly_held", "held")):
        if one[key]:
            yield f"Now {said}: {', '.join(map(linked, one[key]))}."


def _element(name: str) -> ET.Element:
    return ET.Element(f"{{{ATOM}}}{name}")


def _add(to: ET.Element, name: str, text: str = "", **attributes: str) -> ET.Element:
    made = ET.SubElement(to, f"{{{ATOM}}}{name}", attributes)
    made.text = text or None
    return made


def write_feed(app: Sphinx, error: Exception | None) -> None:
    """Write the feed beside the pages, if there is a page of changes."""
    if error or app.builder.format != "html" or PAGE not in app.env.found_docs:
        return
    ET.register_namespace("", ATOM)
    Path(app.outdir, FEED).write_bytes(feed(read(Path(app.srcdir)), app))
