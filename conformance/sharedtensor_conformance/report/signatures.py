"""Computes signatures of failures, to group cases that probably have the same cause.

One fault breaks many cases, and their evidence differs only in numbers, names and
processes. The signature of a case is its evidence without these.
"""

from __future__ import annotations

import re

from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.verdicts import Verdict

STATE_DEPENDENT = "state-dependent (it held in fresh processes): "
"""The beginning of the evidence of a failure that vanished when it was repeated."""

NOT_WAITED = "not judged, to save time: "
"""The beginning of the evidence of a case that was not waited for."""

ALSO_LEFT = "\nit also left: "
"""Separates the evidence of a failed case from the leaks of the case."""

_LEAK = re.compile(r"\d+ more ([a-z ]+?)s?(?: \(([^)]*)\))?(?=[,;:.\n]|$)")
_NAME_LEFT = re.compile(r"the (segment|temporary file|process) \S+")
_MISMATCH = re.compile(r": got (?P<got>.+), not (?P<wanted>.+?)(?=;|$)")
_PARTICULAR = (
    (re.compile(r" \(printed last: .*\)"), ""),
    (re.compile(r"; the shortest history that was found:"), ""),
    (_MISMATCH, ": got something else"),
    (re.compile(r"'[^']*'|\"[^\"]*\"|<[^>]*>"), "#"),
    (re.compile(r"\b(owner|peer|bystander|sender|receiver|child\w*)\b"), "a process"),
    (re.compile(r"\S*\d\S*"), "#"),
)


def signature(case: Case) -> str:
    """Return the evidence of `case` without numbers, names and processes."""
    text = main_evidence(case)
    if leaks := leak_kinds(text):
        return f"left: {', '.join(leaks)}"
    for pattern, general in _PARTICULAR:
        text = pattern.sub(general, text)
    return f"{case.verdict}: {text}"


def main_evidence(case: Case) -> str:
    """Return the line of the evidence of `case` that says what failed."""
    text = case.evidence.removeprefix(STATE_DEPENDENT).partition(ALSO_LEFT)[0].strip()
    lines = text.splitlines() or [""]
    return lines[-1] if case.verdict is Verdict.ERROR else lines[0]


def is_mismatch(case: Case) -> bool:
    """Return whether `case` failed because of wrong values."""
    failed = case.verdict is Verdict.FAIL
    return failed and _MISMATCH.search(main_evidence(case)) is not None


def leak_kinds(text: str) -> list[str]:
    """Return the kinds of leaks in a text, in the words of the ledger's `Leak`."""
    if not text.startswith("not back"):
        return []
    counted = {f"{kind} {target}".strip() for kind, target in _LEAK.findall(text)}
    general = {re.sub(r"\d+ x ", "", kind) for kind in counted}
    return sorted(general | set(_NAME_LEFT.findall(text)))
