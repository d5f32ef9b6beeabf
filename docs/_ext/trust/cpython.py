"""CPython's own tests of multiprocessing, on the standard library and on the drop-in.

``ci/cpython_tests.py`` runs them and writes the record. What the standard library
passes and the drop-in does not is listed with the clause that asks for something else.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from clauses.domain import reference
from docutils import nodes
from elements import missing, paragraph, read_json, table
from sphinx.util.docutils import SphinxDirective

from .age import age

RECORD = "reports/cpython-tests.json"
HEAD = ["Start method", "Tests on", "Passed", "Skipped", "Other", "Seconds"]
DIFFERENCES = ["Test", "Start methods", "Clause", "Reason"]
SUBJECTS = {"standard": "the standard library", "reference": "the drop-in"}


class CPythonTestsDirective(SphinxDirective):
    """``{cpython-tests}``: how many tests passed, and what differs."""

    def run(self) -> list[nodes.Node]:
        """Render the record as it is."""
        docname = self.env.docname
        verify = partial(shown, docname=docname)
        found = read_json(self.env, RECORD, "record of CPython's tests", verify)
        if not found:
            return [missing("No such run is committed yet.")]
        return shown(found, docname)


def shown(found: dict[str, Any], docname: str) -> list[nodes.Node]:
    """Return a row for each start method and subject, and one for each difference."""
    rows = [row(run, subject) for run in found["runs"] for subject in SUBJECTS]
    said = f"With the tests of Python {found['python']}:"
    elements = [age(found), paragraph(said), table(HEAD, rows)]
    differing = differences(found, docname)
    if not differing:
        alike = "The drop-in passes all that the standard library passes."
        return [*elements, paragraph(alike)]
    told = "What the standard library passes and the drop-in does not:"
    return [*elements, paragraph(told), table(DIFFERENCES, differing)]


def row(run: dict[str, Any], subject: str) -> list[object]:
    """Return how many tests of a start method came to what."""
    kinds = dict(run["outcomes"][subject])
    passed, skipped = kinds.pop("pass", 0), kinds.pop("skip", 0)
    others = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    seconds = run["seconds"][subject]
    return [run["method"], SUBJECTS[subject], passed, skipped, others or "-", seconds]


def differences(found: dict[str, Any], docname: str) -> list[list[object]]:
    """Return a row for each test that differs, with all its start methods."""
    methods: dict[tuple[str, str, str], list[str]] = {}
    for one in found["differences"]:
        key = (one["test"], one["clause"], one["reason"])
        methods.setdefault(key, []).append(one["method"])
    return [
        [
            nodes.literal("", test),
            ", ".join(under),
            reference("clause", clause, clause, docname) if clause else "none",
            reason,
        ]
        for (test, clause, reason), under in methods.items()
    ]
