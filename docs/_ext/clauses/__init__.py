"""The Sphinx extension that shows the clauses with everything that backs them.

A clause is written once, in ``spec/``. This extension renders it, and puts beside it
what the rest of the repository says about it: an example, the tests that cite it, the
code of the reference that implements it, the mutants that break it with the lines that
they replace, and what the committed reports say of each implementation. Nothing of this
is kept by hand, so nothing of it can go stale: a clause without evidence, and a
citation of a clause that does not exist, are warnings, and the site is built with
warnings as errors.

The parts, in the order in which a build goes through them:

* `backing` reads the evidence in the code, which is the suite's, and calls those who
  read the rest: `reports` the committed reports, with what is `known` of deviations;
  `releases` the runs on earlier releases; `deviations` what a deviation is reported
  with to its project; `faults` the fault table; `changes` the hashes of an earlier
  text;
* `outcomes` says what is counted, the same on all pages;
* `domain` keeps what was defined and resolves references to it;
* `directives` turn the sources into nodes, with `wording` for the terms in the text of
  a clause, and leave places for what is shown beside them;
* `rendering` fills in the places by the templates in ``templates``, when all clauses
  are known, with the addresses that `links` makes, and with what `prepared` adds;
* `own_pages` writes a page for each clause, and `pages` the source pages that the links
  lead to.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config

from clauses import (
    changes,
    directives,
    domain,
    own_pages,
    pages,
    prepared,
    rendering,
    reports,
    sequences,
)
from clauses.backing import Backing

SHOWN = (
    "spec/*.md",
    "conformance/**/*.py",
    "reference/**/*.py",
    "docs/reports/*.jsonl",
    f"docs/reports/{reports.ON_A_DEVICE}",
    "docs/reports/causes/*.json",
    "docs/reports/releases/*.json",
    "conformance/sharedtensor_conformance/expectations/**/*.toml",
    "docs/conf.py",
    "docs/_ext/**/*.py",
    "docs/_ext/*/templates/*",
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
    first = app.config.clauses_implementations
    app.env.domains[domain.NAME].backing = Backing(root_of(app), first)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.add_config_value("clauses_fingerprint", "", "env")
    app.add_config_value("clauses_chapters", [], "env")
    app.add_config_value("clauses_implementations", [], "env")
    app.add_config_value("clauses_matrix", "matrix", "env")
    app.connect("config-inited", take_fingerprint)
    app.connect("builder-inited", gather)
    for part in (domain, directives, rendering, prepared, sequences, own_pages, pages):
        part.setup(app)
    return {"version": "1", "env_version": 4, "parallel_read_safe": True}
