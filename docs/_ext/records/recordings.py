"""Keeps which clauses flipped from one recorded report to the next, and makes the feed.

A new report takes the place of the one before it, and a site is also built where there
is no history. So ``FILE`` has, of each report, which clauses held and were broken, and
of each recording since, what flipped. ``ci/readme_results.py`` adds the reports that
were recorded. The page "Changes" shows the file, and so does an Atom feed (RFC 4287).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clauses import releases
from clauses.links import Links
from clauses.outcomes import Outcome, outcome_in
from clauses.rendering import written
from clauses.reports import Shown
from sharedtensor_conformance.evidence import Sources, tests
from sphinx.application import Sphinx

FILE = "reports/changes.json"
"""The record, below ``docs``."""

PAGE, FEED = "changes", "changes.xml"
"""The page "Changes", and the feed beside it."""

ENTRIES = 50
"""How many recordings the feed has."""

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
    found = {id: outcome_in(shown, id) for id in shown.judgements}
    implementation = shown.run.implementation
    return Recorded(
        shown.file.stem,
        implementation.name,
        implementation.version,
        shown.started,
        [id for id, outcome in found.items() if outcome is Outcome.HELD],
        [id for id, outcome in found.items() if outcome.breaks],
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


def urn(*parts: str) -> str:
    """Return the id of the feed or of an entry, the same in each build.

    The site has no address of its own that an id could be.
    """
    name = "/".join(("shared-tensor-spec", "changes", *parts))
    return uuid.uuid5(uuid.NAMESPACE_URL, name).urn


def write_feed(app: Sphinx, error: Exception | None) -> None:
    """Write the feed beside the pages, if there is a page of changes."""
    if error or app.builder.format != "html" or PAGE not in app.env.found_docs:
        return
    text = written(
        FEED,
        recordings=read(Path(app.srcdir))["recordings"][:ENTRIES],
        config=app.config,
        links=Links(app, PAGE),
        page=app.builder.get_target_uri(PAGE),
        urn=urn,
    )
    Path(app.outdir, FEED).write_text(text, encoding="utf-8")
