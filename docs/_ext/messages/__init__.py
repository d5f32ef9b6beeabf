"""The Sphinx extension that shows error messages, and what to do about each.

People arrive with a message that they paste into a search. So each message has a
section, whose heading is the part that is always the same, and its texts are index
entries, which the search finds first. A TOML file has all facts but one: the libraries
and releases that show a message come from the expectations.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from clauses.deviations import PROJECTS, title_of
from clauses.domain import NAME
from clauses.known import CAUSES, FOLDER
from clauses.rendering import written
from clauses.shown_files import text_of
from docutils import nodes
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from sharedtensor_conformance.report.expectations import (
    Expectation,
    Expectations,
    ExpectationsError,
    load_expectations,
)
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective


class MessagesError(Exception):
    """A file of messages is malformed; the text names the file and the entry."""


@dataclass(frozen=True)
class Remedy:
    """What helps today, and what it costs."""

    do: str
    price: str


@dataclass(frozen=True)
class Message:
    """A message or a symptom; the head of the TOML file explains the fields."""

    title: str
    texts: Sequence[str]
    means: str
    remedies: Sequence[Remedy]
    clauses: Sequence[str]
    by: str = ""
    outside: str = ""
    programs: Sequence[str] = ()
    threads: Sequence[str] = ()


@dataclass(frozen=True)
class Group:
    """A part of the page."""

    title: str
    messages: Sequence[Message]


@dataclass(frozen=True)
class Recorded:
    """A deviation: the library, the releases that show it, and its program."""

    project: str
    releases: str
    title: str
    file: str


def load_messages(file: Path) -> list[Group]:
    """Return the messages in a file.

    Raises:
        MessagesError: it is no TOML, or an entry lacks something or has too much.
    """
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MessagesError(f"{file.name} cannot be read: {error}") from error
    remedies = {
        name: _made(Remedy, entry, f"{file.name}: remedies.{name}")
        for name, entry in data.get("remedies", {}).items()
    }
    return [
        Group(
            group["title"],
            [_message(one, remedies, file.name) for one in group.get("message", ())],
        )
        for group in data.get("group", ())
    ]


def _message(entry: dict[str, Any], remedies: dict[str, Remedy], file: str) -> Message:
    where = f"{file}: {entry.get('title', 'a message without a title')!r}"
    named = entry.get("remedies", ())
    if missing := set(named) - set(remedies):
        raise MessagesError(f"{where}: there is no remedy {missing.pop()!r}")
    if not named:
        raise MessagesError(f"{where} has no remedy")
    if bool(entry.get("clauses")) == bool(entry.get("outside")):
        raise MessagesError(f"{where} needs either clauses or outside")
    helps = [remedies[name] for name in named]
    return _made(Message, entry | {"remedies": helps}, where)


def _made(kind: type, entry: dict[str, Any], where: str) -> Any:
    """Return an object of a dataclass with the fields of an entry."""
    if unknown := sorted(set(entry) - {field.name for field in fields(kind)}):
        raise MessagesError(f"{where} has an unknown key: {unknown[0]}")
    try:
        return kind(**entry)
    except TypeError as error:
        lacking = str(error).partition("argument")[2].strip("s: ")
        raise MessagesError(f"{where} lacks {lacking}") from error


class MessagesDirective(SphinxDirective):
    """``{messages} FILE``: the messages of a TOML file beside the page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Add a section for each group, with one for each of its messages.

        The parser puts sections below that of the page, wherever text is parsed.
        """
        _, path = self.env.relfn2path(self.arguments[0])
        self.env.note_dependency(path)
        try:
            groups = load_messages(Path(path))
            recorded = Records(self.env.domains[NAME].backing.root)
            text = written("messages.md", groups=groups, recorded=recorded.of)
        except (MessagesError, ExpectationsError, OSError) as error:
            raise ExtensionError(str(error)) from error
        found = self.parse_text_to_nodes(text, allow_section_headings=True)
        messages = [one for group in groups for one in group.messages]
        _index(self.state.document, {one.title: one for one in messages})
        return found


def _index(page: nodes.document, messages: dict[str, Message]) -> None:
    """Add index entries to the sections of messages: the search looks there first."""
    for section in list(page.findall(nodes.section)):
        message = messages.get(section[0].astext())
        if message is None:
            continue  # the page, or a group
        target = section["ids"][0]
        texts = dict.fromkeys([message.title, *message.texts])
        entries = [("single", text, target, "main", None) for text in texts]
        section.insert(1, addnodes.index(entries=entries))


class Records:
    """What the expectations say of the deviations that programs show."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._expectations = cache(self._loaded)

    def _loaded(self, library: str) -> Expectations:
        return load_expectations(self.root / FOLDER / f"{library}.toml")

    def of(self, message: Message) -> Iterator[Recorded]:
        """Yield what is recorded of each program of a message.

        Raises:
            MessagesError: no expectation names the program.
        """
        for program in message.programs:
            library = program.partition("/")[0]
            known = self._expectations(library)
            name = f"{program}.py"
            about = [one for one in known.entries if one.reproducer == name]
            if not about:
                said = f"{message.title!r}: no expectation names the program {name}"
                raise MessagesError(said)
            file = (CAUSES / name).as_posix()
            yield Recorded(
                PROJECTS.get(library, library),
                releases(about, known.judged),
                title_of(text_of(self.root, file)).replace("`", ""),
                file,
            )


def releases(about: Iterable[Expectation], judged: str) -> str:
    """Return the releases that expectations are about, the widest range of all.

    Args:
        judged: the newest release that was judged.
    """
    ranges = {(_bound(one.versions, ">="), _bound(one.versions, "<")) for one in about}
    first = min((low for low, _ in ranges), key=lambda low: Version(low or "0"))
    ends = {high for _, high in ranges}
    if "" not in ends:
        return f"{first} and later, before {max(ends, key=Version)}"
    is_newest = not first or f"{judged}.".startswith(f"{first}.")
    return judged if is_newest else f"{first} to {judged}"


def _bound(versions: SpecifierSet, operator: str) -> str:
    """Return the version after an operator, "" where there is no such bound."""
    return next((one.version for one in versions if one.operator == operator), "")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.setup_extension("clauses")
    app.add_directive("messages", MessagesDirective)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True}
