"""Reads the clauses from the spec, for both the suite and the site.

A clause is a fenced directive in a chapter of ``spec/``: options, then the normative
paragraph, then "Why." and the reasons. The hash of a clause covers its normative parts:
level, profile and text, the definitions of the profile and of the terms that they use,
and the rules for reading clauses. So a report can record which text it judged.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from sharedtensor_conformance.profiles import load_profiles
from sharedtensor_conformance.spec_source import (
    SpecError,
    blocks,
    read_page,
    section,
    spec_files,
)
from sharedtensor_conformance.terms import definitions, load_terms

SPEC_VERSION = "0.1.0"
LEVELS = ("MUST", "SHOULD")
OBSERVES = ("sharing", "values", "lifetime", "errors")

OPTIONS = ("title", "level", "profile", "observes", "promises", "no-code")
"""The options of a clause. ``no-code`` is the reason why no code of the reference
implements it.
"""

_OPTION = re.compile(r":(?P<name>[a-z-]+):\s*(?P<value>.*)")
_ROLE = re.compile(r"\{\w+\}`([^`]*)`")
_ID = re.compile(r"(?P<chapter>[A-Z]+)-(?P<number>\d+)")


@dataclass(frozen=True)
class Clause:
    """One numbered statement of the spec."""

    id: str
    title: str
    level: str
    profile: str
    observes: str
    promises: tuple[str, ...]
    text: str
    why: str
    file: str
    line: int
    no_code: str = ""

    @property
    def plain_text(self) -> str:
        """The text in one line and without markup, for a terminal or a program."""
        return _ROLE.sub(r"\1", " ".join(self.text.split()))

    @property
    def chapter(self) -> str:
        """The chapter, such as ``GRAD``."""
        return self.id.partition("-")[0]

    @property
    def order(self) -> int:
        """The number within the chapter."""
        return int(self.id.partition("-")[2])

    @property
    def hash(self) -> str:
        """A digest of all normative parts, as twelve hexadecimal digits."""
        return _hash(self.level, self.profile, " ".join(self.text.split()))


@cache
def _hash(level: str, profile: str, text: str) -> str:
    """Return a digest over the text of a clause and the definitions that it uses."""
    meaning = load_profiles().get(profile)
    claim = meaning.claim if meaning else ""
    used = load_terms().used_by(f"{text} {claim}")
    binding = "\n".join([level, profile, text, claim, *definitions(used), load_rules()])
    return hashlib.sha256(binding.encode()).hexdigest()[:12]


@cache
def load_rules() -> str:
    """Return the rules for reading clauses, from the page ``conformance.md``.

    Raises:
        SpecError: the page has no such section.
    """
    return " ".join(section(read_page("conformance.md"), "Clauses").split())


def parse_clause(id: str, content: str, file: str, line: int = 0) -> Clause:
    """Return the clause `id` whose directive has the body `content`.

    Raises:
        SpecError: an option or the normative paragraph is missing or unknown.
    """
    options, body = _split_options(content)
    text, _, why = body.partition("\nWhy.")
    clause = Clause(
        id=id,
        title=options.get("title", ""),
        level=options.get("level", ""),
        profile=options.get("profile", ""),
        observes=options.get("observes", ""),
        promises=tuple(options.get("promises", "").split()),
        text=text.strip(),
        why=why.strip(),
        file=file,
        line=line,
        no_code=options.get("no-code", ""),
    )
    _verify(clause, options)
    return clause


def _split_options(content: str) -> tuple[dict[str, str], str]:
    options: dict[str, str] = {}
    lines = content.splitlines()
    while lines and (found := _OPTION.fullmatch(lines[0].strip())):
        options[found["name"]] = found["value"].strip()
        lines.pop(0)
    return options, "\n".join(lines)


def _verify(clause: Clause, options: dict[str, str]) -> None:
    complaints = {
        "an id such as GRAD-3": _ID.fullmatch(clause.id),
        f"a :level: of {', '.join(LEVELS)}": clause.level in LEVELS,
        f"an :observes: of {', '.join(OBSERVES)}": clause.observes in OBSERVES,
        "a :title:": clause.title,
        "a :profile:": clause.profile,
        "a normative paragraph": clause.text,
        "a paragraph that begins with 'Why.'": clause.why,
    }
    for needed, present in complaints.items():
        if not present:
            raise SpecError(f"{clause.file}:{clause.line}: {clause.id} needs {needed}")
    for name in options:
        if name not in OPTIONS:
            where = f"{clause.file}:{clause.line}: {clause.id}"
            raise SpecError(f"{where} has an unknown option :{name}:")


def parse_chapter(source: str, file: str) -> list[Clause]:
    """Return the clauses in the MyST `source` of one chapter, in order."""
    return [
        parse_clause(block.argument, block.content, file, block.line)
        for block in blocks(source, "clause")
    ]


@cache
def load_clauses() -> dict[str, Clause]:
    """Return all clauses by id, in the order of the chapters' names.

    Raises:
        SpecError: a clause is malformed, or an id is used twice.
    """
    clauses: dict[str, Clause] = {}
    for file in spec_files():
        for clause in parse_chapter(file.read_text(encoding="utf-8"), file.name):
            if clause.id in clauses:
                raise SpecError(f"{file.name}: the id {clause.id} is used twice")
            clauses[clause.id] = clause
    return clauses


def matching_clauses(pattern: str) -> list[str]:
    """Return the ids of the clauses that match, in order; * matches any text."""
    return [id for id in load_clauses() if fnmatchcase(id, pattern)]
