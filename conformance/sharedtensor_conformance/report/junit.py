"""Converts a report to JUnit XML, for CI systems that show test results."""

from __future__ import annotations

import re
from collections import Counter
from itertools import groupby
from xml.etree import ElementTree

from sharedtensor_conformance.report.needs import not_here
from sharedtensor_conformance.report.records import STAND_INS, Case, Report
from sharedtensor_conformance.report.verdicts import Verdict

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(report: Report) -> str:
    """Return the report as JUnit XML.

    New failures are failures, and faults of the suite are errors. Known deviations, and
    cases that were not run or are not claimed, are skipped, with the reason. An
    incomplete report gets an additional test case, an error, so that it cannot be
    mistaken for a complete one.
    """
    name = f"shared-tensor-spec {report.run.implementation}"
    root = ElementTree.Element("testsuites", name=_clean(name))
    ordered = sorted(report.cases, key=_file)
    for file, cases in groupby(ordered, key=_file):
        _add_suite(root, report, file, list(cases))
    if not report.complete:
        _add_cut_short(root, report)
    totals: Counter[str] = Counter()
    for suite in root:
        for key in ("tests", "failures", "errors", "skipped"):
            totals[key] += int(suite.get(key, "0"))
    root.attrib.update({key: str(count) for key, count in totals.items()})
    ElementTree.indent(root)
    body = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n'


def _file(case: Case) -> str:
    return case.test.partition("::")[0]


def _add_suite(
    root: ElementTree.Element, report: Report, file: str, cases: list[Case]
) -> None:
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=_clean(file),
        timestamp=report.run.started.removesuffix("Z"),
        time=f"{sum(case.seconds for case in cases):.3f}",
    )
    for case in cases:
        _add_case(suite, case)
    _count(suite)


def _add_case(suite: ElementTree.Element, case: Case) -> None:
    file, _, name = case.id.partition("::")
    label = f" ({case.device})" if case.device in STAND_INS else ""
    element = ElementTree.SubElement(
        suite,
        "testcase",
        classname=_clean(file.removesuffix(".py").replace("/", ".")),
        name=_clean(name or file) + label,
        time=f"{case.seconds:.3f}",
    )
    tag = _tag(case)
    if not tag:
        return
    verdict = not_here([case.needs]) if case.needs else case.verdict
    message = f"{verdict}: {' '.join(case.clauses)}"
    if case.cause:
        message += f" (known: {case.cause})"
    if case.state_dependent:
        message += " (state-dependent: it held when repeated in fresh processes)"
    attributes = {"message": _clean(message)}
    if tag != "skipped":
        attributes["type"] = str(case.verdict)
    outcome = ElementTree.SubElement(element, tag, attributes)
    outcome.text = _clean(case.evidence)


def _tag(case: Case) -> str:
    if case.verdict is Verdict.PASS:
        return ""
    if case.verdict is Verdict.ERROR:
        return "error"
    return "failure" if case.verdict.broken and not case.expected else "skipped"


def _add_cut_short(root: ElementTree.Element, report: Report) -> None:
    planned, found = report.run.planned, len(report.cases)
    suite = ElementTree.SubElement(root, "testsuite", name="report", time="0.000")
    element = ElementTree.SubElement(
        suite, "testcase", classname="report", name="the run reached its end", time="0"
    )
    said = f"{found} of {planned} planned cases were reported"
    ElementTree.SubElement(element, "error", message=said, type="incomplete")
    _count(suite)


def _count(suite: ElementTree.Element) -> None:
    suite.set("tests", str(len(suite.findall("testcase"))))
    for tag, key in (
        ("failure", "failures"),
        ("error", "errors"),
        ("skipped", "skipped"),
    ):
        suite.set(key, str(len(suite.findall(f"testcase/{tag}"))))


def _clean(text: str) -> str:
    # XML 1.0 does not permit control characters, not even as character references.
    return _NOT_XML.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
