"""Finds the files of the spec and reads their fenced blocks.

Terms, profiles and clauses are Markdown blocks with the name of a directive. The suite
and the site use this parser, so that they cannot read the blocks differently.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from markdown_it import MarkdownIt


class SpecError(Exception):
    """The source of the spec is malformed; the message names the file."""


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Args:
        argument: the text after the name of the directive.
        content: the lines of the block.
        line: the number of its first line.
    """

    argument: str
    content: str
    line: int


def blocks(source: str, directive: str) -> Iterator[Block]:
    """Yield the blocks of a directive in the Markdown `source`, in order."""
    opening = f"{{{directive}}}"
    for token in MarkdownIt("commonmark").parse(source):
        if token.type == "fence" and token.info.startswith(opening):
            argument = token.info.removeprefix(opening).strip()
            yield Block(argument, token.content, token.map[0] + 1 if token.map else 0)


def section(source: str, title: str) -> str:
    """Return the text between the heading `title` and the next heading of its level.

    Raises:
        SpecError: there is no such heading.
    """
    _, heading, rest = source.partition(f"\n## {title}\n")
    if not heading:
        raise SpecError(f"the section {title!r} is missing")
    return rest.partition("\n## ")[0].strip()


def defined(content: str) -> Iterator[tuple[list[str], str]]:
    """Yield the heads and the text of each definition in a list.

    Heads are lines without indentation. The text is indented.
    """
    heads: list[str] = []
    text: list[str] = []
    for line in content.splitlines():
        if line.strip() and not line.startswith(" "):
            if text:
                yield heads, " ".join(text)
                heads, text = [], []
            heads.append(line.strip())
        else:
            text += line.split()
    if heads:
        yield heads, " ".join(text)


def spec_files() -> list[Traversable]:
    """Return the files of the spec, sorted by name."""
    package = files("sharedtensor_conformance")
    installed, checkout = package / "spec", package / ".." / ".." / "spec"
    root = installed if installed.is_dir() else checkout
    pages = (entry for entry in root.iterdir() if entry.name.endswith(".md"))
    return sorted(pages, key=lambda entry: entry.name)


def read_page(name: str) -> str:
    """Return the text of a page."""
    return next(f for f in spec_files() if f.name == name).read_text(encoding="utf-8")
