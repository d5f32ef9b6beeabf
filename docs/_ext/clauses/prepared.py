"""What templates need beside the clauses and what backs them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from urllib.parse import quote

from sharedtensor_conformance.adapter import (
    ADAPTER_CHANGES,
    LONG_PROFILES,
    operations_of,
)
from sharedtensor_conformance.clauses import LEVELS, SPEC_VERSION, Clause
from sharedtensor_conformance.evidence import citing
from sharedtensor_conformance.report.causes import Promise
from sharedtensor_conformance.report.needs import reason
from sharedtensor_conformance.report.repeat import repeat_command
from sharedtensor_conformance.report.signatures import main_evidence
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError

from clauses import faults
from clauses.backing import Backing
from clauses.changes import changes
from clauses.deviations import (
    PATCHED,
    PROJECTS,
    SHORTENED,
    Deviating,
    Program,
    Report,
    findings,
    fixes_of,
    issue_form,
    program_of,
)
from clauses.domain import NAME
from clauses.known import Deviation
from clauses.outcomes import outcome_in
from clauses.releases import rows, steps
from clauses.rendering import PREPARED, Content, written
from clauses.reports import NO_CUDA, Column, Judgement
from clauses.settings import SETTINGS

CONFIGURATION = re.compile(r" under [a-z_]+$")


def clause_page(content: Content) -> Content:
    """Return what backs a clause: an example, tests, code, mutants and programs."""
    id, backing = content["clause"].id, content["backing"]
    return {
        "example": backing.examples.get(id),
        "tests": citing(backing.evidence.tests, id),
        "code_of": citing(backing.evidence.code, id),
        "mutants": citing(backing.evidence.mutants, id),
        "explained": partial(explained, backing),
    }


def explained(
    backing: Backing, judgement: Judgement
) -> Iterator[tuple[Deviation, Program | None]]:
    """Yield the known deviations of a verdict; each program once, with the first."""
    shown = {""}
    for cause in judgement.known:
        file = cause.program
        is_new = file not in shown
        shown.add(file)
        known = backing.deviations
        yield cause, program_of(backing.root, known, file) if is_new else None


def answers(content: Content) -> Content:
    """Return a promise, with the clauses that answer it."""
    id = content["id"]
    found = content["env"].domaindata[NAME]["promise"][id]
    ids = [one.id for one in content["clauses"] if id in one.promises]
    return {"promise": found.content, "reason": found.reason, "ids": ids}


def picture(content: Content) -> Content:
    """Return the configured implementations, and what a stand-in was judged on."""
    shown = content["env"].config.clauses_implementations
    columns = [one for one in content["backing"].columns if one.name in shown]
    return {"columns": columns, "stand_ins": [*_stand_ins(columns)]}


def _stand_ins(columns: Iterable[Column]) -> Iterator[str]:
    for column in columns:
        judged = column.judgements.values()
        devices = [device for one in judged for device in one.stand_ins]
        for device in dict.fromkeys(devices):
            count = devices.count(device)
            yield f"{count} of {column.name} on the {device} device, never on CUDA"


def implementation(content: Content) -> Content:
    """Return what the reports say of the implementation that a page is about."""
    return {
        "column": content["backing"].column(content["name"]),
        "main_evidence": main_evidence,
        "repeat_command": repeat_command,
    }


def not_run(content: Content) -> Content:
    """Return the reasons why clauses were not judged, with the clauses of each."""
    column = content["backing"].column(content["name"])
    reasons: dict[str, list[str]] = {}
    for clause in content["clauses"]:
        if column.asks(clause) and not outcome_in(column, clause.id).judged:
            reasons.setdefault(_why_not(column, clause), []).append(clause.id)
    return {"reasons": reasons}


def _why_not(column: Column, clause: Clause) -> str:
    """Return why `clause` was not judged."""
    judgement = column.judgements.get(clause.id)
    if judgement is None:
        return "the clause is newer than the recorded run"
    if judgement.needs:
        return reason(judgement.needs)
    if judgement.lacks_cuda:
        return NO_CUDA
    if judgement.reasons:
        return CONFIGURATION.sub("", next(iter(judgement.reasons)))
    claims = {one for run in column.reports for one in run.run.implementation.claims}
    if clause.profile not in claims:
        return f"the profile '{clause.profile}' is not claimed"
    if clause.profile in LONG_PROFILES:
        return f"the profile '{clause.profile}' is judged only when it is asked for"
    return "no case of the run judged it"


def released(content: Content) -> Content:
    """Return the releases of a library, and the clauses that some of them break."""
    found = content["backing"].releases.get(content["name"], [])
    broken = rows(content["clauses"], found) if found else []
    return {"releases": found, "rows": broken, "steps": [*steps(broken, found)]}


def deviating(content: Content) -> Content:
    """Return what is known of an implementation's deviations."""
    name, backing = content["name"], content["backing"]
    patched = backing.column(PATCHED.get(name, ""))
    return {
        "known": backing.deviations[name],
        "column": backing.column(name),
        "patched": patched,
        "patched_as": PATCHED.get(name, ""),
        "fixes_of": fixes_of,
    }


def deviation(content: Content) -> Content:
    """Return one report of a deviation, also as Markdown and as a new issue."""
    found, report = deviating(content), content["report"]
    promises = list(promises_of(report, found["known"], content["env"]))
    said = {"promises": [one for _, one in promises], "spec": SPEC_VERSION}
    defined = content["env"].domaindata[NAME]["clause"]
    said["clauses"] = [(id, defined[id].title) for id in report.clauses]
    markdown = written("deviation.md", report=report, **said).strip()
    said = {"promises": promises, "markdown": markdown}
    form = issue_form(report, markdown)
    return {**found, **said, "form": form, "shortened": quote(SHORTENED) in form}


def promises_of(
    report: Report, known: Deviating, env: BuildEnvironment
) -> Iterator[tuple[str, Promise]]:
    """Yield the promises that a report is about; those of the site have a name.

    Raises:
        ExtensionError: one of the site is not there.
    """
    defined = env.domaindata[NAME]["promise"]
    for name in report.cause.promises:
        if name in known.promises:
            yield "", known.promises[name]
        elif name in defined:
            yield name, defined[name].content
        else:
            raise ExtensionError(
                f"{report.file} breaks the promise {name}, which is not on the page of "
                "promises"
            )


def all_findings(content: Content) -> Content:
    """Return the deviations of all projects, side by side."""
    known = content["backing"].deviations
    order = [clause.id for clause in content["clauses"]]
    projects = {name: PROJECTS[name] for name in known}
    return {"findings": findings(known, order), "projects": projects}


def fault_table(content: Content) -> Content:
    """Return the fault table, what the reports say of it, and what is behind that."""
    table, columns = content["backing"].faults, content["backing"].columns
    judged = faults.judged(table, columns)
    return {
        "faults": table,
        "judged": judged,
        "strategies": sorted({name for one in judged for name in one.counted()}),
        "judgement_of": faults.judgement_of,
        "reasons": list(dict.fromkeys(table.reasons.values())),
        "findings": faults.findings(table, judged),
    }


def setup(app: Sphinx) -> None:
    """Say which function is for which template."""
    PREPARED.update(
        {
            "clause-page": clause_page,
            "answers": answers,
            "clause-index": lambda _: {"citing": citing},
            "clause-matrix": lambda _: {"levels": LEVELS, "settings": SETTINGS},
            "clause-changes": lambda content: {
                "changes": changes(content["clauses"], content["backing"].earlier)
            },
            "contract-versions": lambda _: {"versions": ADAPTER_CHANGES},
            "profiles": lambda _: {"operations_of": operations_of},
            "field": picture,
            "findings": all_findings,
            "releases": released,
            "implementation-figures": implementation,
            "implementation-broken": implementation,
            "implementation-not-run": not_run,
            "implementation-runs": implementation,
            "deviation": deviation,
            "deviation-list": deviating,
            "deviation-clauses": deviating,
            "deviations-without-promise": deviating,
        }
    )
    parts = ("steps", "roles", "faults", "verdicts", "cells", "reasons", "findings")
    PREPARED.update({f"fault-{part}": fault_table for part in parts})
