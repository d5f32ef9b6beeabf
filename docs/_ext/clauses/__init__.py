"""The Sphinx extension that shows the clauses with everything that backs them.

A clause is written once, in ``spec/``. This extension renders it, and puts beside it
what the rest of the repository says about it: an example, the tests that cite it, the
code of the reference that implements it, the mutants that break it with the lines that
they replace, and what the committed reports say of each implementation. Nothing of this
is kept by hand, so nothing of it can go stale: a clause without evidence, and a
citation of a clause that does not exist, are warnings, and the site is built with
warnings as errors.

The evidence is the suite's (`sharedtensor_conformance.evidence`). The parts, in the
order in which a build goes through them:

* `reports` reads the committed reports, with what is `known` of deviations, and
  `changes` the hashes of an earlier text;
* `outcomes` says what is counted, the same on all pages;
* `releases` reads the summaries of runs on earlier releases, and says since when a
  clause is broken;
* `faults` reads the fault table, and finds the test and the verdicts of each cell;
* `domain` keeps what was defined and resolves references to it;
* `directives` turn the sources into nodes, with `boxes` for one clause, `wording` for
  the terms in its text, and `fault_page` for the fault table;
* `tables` are filled in at the end, when all clauses are known: with `matrix_page` for
  the matrix, `field` for the picture of it, `implementations` for their pages,
  `releases_page` for the releases of a library, and `rendering` and `links` for what
  they have in common;
* `deviations` gathers what a deviation is reported with to its project, and
  `deviation_pages` shows it and writes it as Markdown; `findings` has those of all
  projects side by side;
* `pages` writes the source pages that the links lead to.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from sharedtensor_conformance.evidence import Sources, read_evidence
from sharedtensor_conformance.examples import read_examples
from sphinx.application import Sphinx
from sphinx.config import Config

from clauses import (
    changes,
    deviation_pages,
    deviations,
    directives,
    domain,
    pages,
    releases,
    reports,
    tables,
)
from clauses.wording import read_terms

SHOWN = (
    "spec/*.md",
    "conformance/**/*.py",
    "reference/**/*.py",
    "docs/reports/*.jsonl",
    "docs/reports/causes/*.json",
    "docs/reports/releases/*.json",
    "conformance/sharedtensor_conformance/expectations/**/*.toml",
    "docs/conf.py",
    "docs/_ext/**/*.py",
    "docs/_ext/clauses/templates/*",
    changes.FILE,
)
"""What a page depends on besides its own text."""


def root_of(app: Sphinx) -> Path:
    """Return the root of the repository that is shown."""
    return Path(app.confdir).resolve().parent


def take_fingerprint(app: Sphinx, config: Config) -> None:
    """Have every page rebuilt when anything that backs a clause has changed."""
    digest = hashlib.sha256()
    for pattern in SHOWN:
        for path in sorted(root_of(app).glob(pattern)):
            digest.update(str(path).encode() + path.read_bytes())
    config.clauses_fingerprint = digest.hexdigest()


def gather(app: Sphinx) -> None:
    """Read what backs the clauses, once for the whole build."""
    env, root = app.env, root_of(app)
    first = app.config.clauses_implementations
    env.clauses_root = root
    env.clauses_terms = read_terms(root)
    env.clauses_evidence = read_evidence(Sources.of_checkout(root))
    env.clauses_examples = read_examples(Sources.of_checkout(root))
    env.clauses_reports = reports.read_all(root, first)
    env.clauses_columns = reports.columns(env.clauses_reports)
    env.clauses_deviations = deviations.read_all(root, env.clauses_columns)
    tests = env.clauses_evidence.tests
    env.clauses_releases = releases.read_all(root, env.clauses_columns, tests)
    env.clauses_earlier = changes.read_earlier(root)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.setup_extension("elements")
    app.add_config_value("clauses_fingerprint", "", "env")
    app.add_config_value("clauses_chapters", [], "env")
    app.add_config_value("clauses_implementations", [], "env")
    app.add_config_value("clauses_matrix", "matrix", "env")
    app.connect("config-inited", take_fingerprint)
    app.connect("builder-inited", gather)
    for part in (domain, directives, tables, deviation_pages, pages):
        part.setup(app)
    return {"version": "1", "env_version": 3, "parallel_read_safe": True}
