"""The Sphinx extension that shows the clauses with everything that backs them.

A clause is written once, in ``spec/``. This extension renders it, and puts beside it
what the rest of the repository says about it: the tests that cite it, the code of the
reference that embodies it, the mutants that break it, and what the committed reports
say of each implementation. Nothing of this is kept by hand, so nothing of it can go
stale: a citation of a clause that does not exist is a warning, and the site is built
with warnings as errors.

The parts, in the order in which a build goes through them:

* `evidence` reads tests, reference and mutants without importing them;
* `reports` reads the committed reports;
* `faults` reads the fault table, and finds the test and the verdicts of each cell;
* `domain` keeps what was defined and resolves references to it;
* `directives` turn the sources into nodes, with `boxes` for one clause and
  `fault_table` for the fault table;
* `tables` are filled in at the end, when all clauses are known;
* `pages` writes the source pages that the links lead to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config

from clauses import (
    boxes,
    directives,
    domain,
    evidence,
    fault_table,
    faults,
    pages,
    reports,
    tables,
)

PATTERNS = {
    "clauses_spec": "spec/*.md",
    "clauses_tests": "conformance/sharedtensor_conformance/chapters/test_*.py",
    "clauses_reference": "reference/sharedtensor/**/*.py",
    "clauses_mutants": "conformance/sharedtensor_conformance/mutants/chapters/*.py",
    "clauses_reports": "docs/reports/*.jsonl",
    "clauses_faults": "conformance/sharedtensor_conformance/chapters/fault_table.py",
}


def root_of(app: Sphinx, config: Config) -> Path:
    """Return the root of the repository that is shown."""
    return (Path(app.confdir) / config.clauses_root).resolve()


def take_fingerprint(app: Sphinx, config: Config) -> None:
    """Have every page rebuilt when anything that backs a clause has changed."""
    patterns = [config[name] for name in PATTERNS]
    config.clauses_fingerprint = evidence.fingerprint(root_of(app, config), patterns)


def gather(app: Sphinx) -> None:
    """Read what backs the clauses, once for the whole build."""
    root, config = root_of(app, app.config), app.config
    app.env.clauses_root = root
    app.env.clauses_reports = reports.read_all(
        root, config.clauses_reports, config.clauses_implementations
    )
    app.env.clauses_evidence = evidence.Evidence(
        tests=evidence.tests(root, config.clauses_tests),
        code=evidence.code(root, config.clauses_reference),
        mutants=evidence.mutants(root, config.clauses_mutants),
    )
    app.env.clauses_columns = reports.columns(app.env.clauses_reports)
    app.env.clauses_faults_table = faults.read(
        root, config.clauses_faults, config.clauses_tests
    )
    faults.verify_reports(app.env.clauses_faults_table, app.env.clauses_reports)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.add_config_value("clauses_root", "..", "env")
    app.add_config_value("clauses_fingerprint", "", "env")
    app.add_config_value("clauses_chapters", [], "env")
    app.add_config_value("clauses_implementations", [], "env")
    for name, pattern in PATTERNS.items():
        app.add_config_value(name, pattern, "env")
    app.connect("config-inited", take_fingerprint)
    app.connect("builder-inited", gather)
    for part in (domain, boxes, directives, tables, fault_table, pages):
        part.setup(app)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True}
