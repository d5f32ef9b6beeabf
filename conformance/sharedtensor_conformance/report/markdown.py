"""Converts a report to Markdown, for the job summaries of CI systems."""

from __future__ import annotations

import html
import re

from sharedtensor_conformance.report import sentences
from sharedtensor_conformance.report.groups import Group
from sharedtensor_conformance.report.needs import NOT_HERE, reason
from sharedtensor_conformance.report.run_view import RunView
from sharedtensor_conformance.report.templating import filled, safe


def markdown(view: RunView) -> str:
    """Return the verdict, the table and the broken clauses as Markdown."""
    content = {
        "view": view,
        "sentences": sentences,
        "not_here": [
            f"{NOT_HERE}: {', '.join(ids)}, since {reason([need])}"
            for need, ids in view.by_need.items()
        ],
        "escaped": lambda text: safe(_escaped(text)),
        "shown": lambda group: safe(_shown(view, group)),
    }
    return filled("report.md", content).rstrip("\n") + "\n"


def _shown(view: RunView, group: Group) -> str:
    """Return the case that a group shows, with its evidence and its command."""
    case = group.shown
    return fenced(f"{case.id}\n{case.evidence}\n\n{view.repeat(group)}")


def fenced(text: str) -> str:
    """Return `text` in a code block that nothing in it can close."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_|\[\]])", r"\\\1", html.escape(text, quote=False))
