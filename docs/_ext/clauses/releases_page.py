"""Shows the recorded releases of a library: what changed in each, and the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from docutils import nodes
from elements import badge, between, download, missing, paragraph, table
from packaging.version import Version
from sharedtensor_conformance.clauses import Clause

from clauses.boxes import is_of_another_text
from clauses.domain import reference
from clauses.releases import Release, Row, State, rows

LOOKS = {
    State.HELD: ("✓", "verdict-pass"),
    State.BROKEN: ("✗", "verdict-fail"),
    State.HELD_THIS_TIME: ("✓", "verdict-not-run"),
    State.NOT_JUDGED: ("○", "verdict-not-run"),
}
"""The sign and the class of each state."""


def downloads(releases: Iterable[Release]) -> nodes.Element:
    """Return where the summaries of earlier releases can be had, with their dates."""
    found = [(release.file.name, release) for release in releases if release.file]
    if not found:
        return missing("No run of an earlier release is recorded.")
    links = [
        nodes.inline(
            "",
            "",
            download(f"reports/releases/{name}", name),
            nodes.Text(f" ({release.started.partition('T')[0]})"),
        )
        for name, release in found
    ]
    return nodes.paragraph("", "Summaries of the runs: ", *between(links, ", "))


def shown(
    clauses: Sequence[Clause], releases: Sequence[Release], docname: str
) -> list[nodes.Node]:
    """Return what changed from release to release in words, and the table."""
    if not releases:
        return []
    found = rows(clauses, releases)
    steps = pairwise(release.version for release in releases)
    changed = [
        nodes.list_item("", line)
        for before, after in steps
        for line in _step(found, before, after, docname)
    ]
    listed = [nodes.bullet_list("", *changed)] if changed else []
    return [_sum(found, releases), *listed, _table(found, releases, docname)]


def _sum(found: Sequence[Row], releases: Sequence[Release]) -> nodes.Element:
    always = sum(all(broken for _, broken in row.decided) for row in found)
    first, last = releases[0].version.public, releases[-1].version.public
    return paragraph(
        f"Clauses that at least one of the {len(releases)} releases from {first} to "
        f"{last} breaks: {len(found)}. Broken in each release in which they were "
        f"judged: {always}."
    )


def _step(
    found: Sequence[Row], before: Version, after: Version, docname: str
) -> Iterator[nodes.Element]:
    """Yield what was fixed and what was broken from one release to the next."""
    for broken, what in ((False, "fixed"), (True, "broken")):
        changed = [
            _link(row, docname)
            for row in found
            if any(now == after and became is broken for _, now, became in row.changes)
        ]
        if changed:
            said = f"After {before.public}, by {after.public}, {what}: "
            yield nodes.paragraph("", said, *between(changed, ", "))


def _table(
    found: Sequence[Row], releases: Sequence[Release], docname: str
) -> nodes.Element:
    versions = [release.version.public for release in releases]
    head = ["Clause", "Title", *versions, "Broken since"]
    lines = [
        [_link(row, docname), row.clause.title, *_cells(row), row.since]
        for row in found
    ]
    return table(head, lines, "releases")


def _link(row: Row, docname: str) -> nodes.Node:
    return reference("clause", row.clause.id, row.clause.id, docname)


def _cells(row: Row) -> Iterator[nodes.Node]:
    for release, state in zip(row.releases, row.states, strict=True):
        sign, look = LOOKS[state]
        text = f"{sign} {state}"
        judgement = release.judgements.get(row.clause.id)
        if judgement and state.decided and is_of_another_text(judgement, row.clause):
            text += ", another text"
        yield badge(text, "verdict", look)
