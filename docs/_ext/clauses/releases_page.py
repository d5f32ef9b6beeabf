"""Shows the recorded releases of a library: what changed in each, and the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from docutils import nodes
from elements import between, download, missing
from packaging.version import Version
from sharedtensor_conformance.clauses import Clause

from clauses.boxes import is_of_another_text
from clauses.links import Links
from clauses.releases import Release, Row, State, rows
from clauses.rendering import rendered

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
    clauses: Sequence[Clause], releases: Sequence[Release], links: Links
) -> list[nodes.Node]:
    """Return what changed from release to release in words, and the table."""
    if not releases:
        return []
    found = rows(clauses, releases)
    neighbours = pairwise(release.version for release in releases)
    return [
        rendered(
            "releases.html",
            releases=releases,
            rows=[(row, list(_cells(row))) for row in found],
            always=sum(all(broken for _, broken in row.decided) for row in found),
            steps=[step for pair in neighbours for step in _steps(found, *pair)],
            links=links,
        )
    ]


def _steps(
    found: Sequence[Row], before: Version, after: Version
) -> Iterator[tuple[Version, Version, str, list[str]]]:
    """Yield what was fixed and what was broken from one release to the next."""
    for broken, what in ((False, "fixed"), (True, "broken")):
        changed = [
            row.clause.id
            for row in found
            if any(now == after and became is broken for _, now, became in row.changes)
        ]
        if changed:
            yield before, after, what, changed


def _cells(row: Row) -> Iterator[tuple[str, str, str]]:
    """Yield the sign, the class and the words of each release."""
    for release, state in zip(row.releases, row.states, strict=True):
        judgement = release.judgements.get(row.clause.id)
        is_of_another = judgement and is_of_another_text(judgement, row.clause)
        text = f"{state}, another text" if state.decided and is_of_another else state
        yield *LOOKS[state], str(text)
