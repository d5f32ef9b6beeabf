"""Reads the terms that the spec defines, and finds where a text uses them.

The definitions of terms are normative. So the hash of a clause covers the definitions
of the terms that it uses, and of the terms that these definitions use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from sharedtensor_conformance.spec_source import SpecError, blocks, defined, read_page

PAGE = "terms.md"

_MARKED_UP = re.compile(r"(\{\w+\})?`[^`]*`")


@dataclass(frozen=True)
class Term:
    """One term: its name, all of its forms, and its definition."""

    name: str
    forms: tuple[str, ...]
    definition: str


@dataclass(frozen=True)
class Use:
    """One use of a term in a text, with its begin and end as indices."""

    term: Term
    start: int
    end: int


class Terms:
    """The terms of a glossary.

    Args:
        source: the page with the blocks of the directive ``glossary``.

    Raises:
        SpecError: a term has no definition, or two.
    """

    def __init__(self, source: str) -> None:
        self.by_form: dict[str, Term] = {}
        for block in blocks(source, "glossary"):
            for forms, definition in defined(block.content):
                self._add(Term(forms[0], tuple(forms), definition))
        longest_first = sorted(self.by_form, key=len, reverse=True)
        forms_of_all = "|".join(map(_inflected, longest_first)) or "(?!)"
        self._pattern = re.compile(rf"\b(?:{forms_of_all})\b", re.IGNORECASE)
        self._patterns = {form: re.compile(_inflected(form)) for form in longest_first}
        self._terms_of: dict[str, Term] = {}  # a cache, by word
        self._terms_in: dict[str, dict[str, Term]] = {}  # a cache, by text

    def _add(self, term: Term) -> None:
        for form in term.forms:
            if not term.definition or form in self.by_form:
                raise SpecError(f"{PAGE}: {form!r} needs one definition")
            self.by_form[form] = term

    def uses(self, text: str) -> Iterator[Use]:
        """Yield the uses of terms in a text, in order; code and roles do not count."""
        plain = _MARKED_UP.sub(lambda found: "`" * len(found[0]), text)
        for found in self._pattern.finditer(plain):
            yield Use(self._term_of(found[0]), found.start(), found.end())

    def _term_of(self, word: str) -> Term:
        lower = " ".join(word.lower().split())
        if lower not in self._terms_of:
            patterns = self._patterns.items()
            form = next(form for form, known in patterns if known.fullmatch(lower))
            self._terms_of[lower] = self.by_form[form]
        return self._terms_of[lower]

    def used_by(self, text: str) -> dict[str, Term]:
        """Return the terms that a text and their definitions use, by name."""
        found: dict[str, Term] = {}
        texts = [text]
        while texts:
            new = self._used_in(texts.pop())
            texts += [t.definition for name, t in new.items() if name not in found]
            found |= new
        return dict(sorted(found.items()))

    def _used_in(self, text: str) -> dict[str, Term]:
        """Return the terms in a text, by name. Results are cached, as texts repeat."""
        if text not in self._terms_in:
            used = (use.term for use in self.uses(text))
            self._terms_in[text] = {term.name: term for term in used}
        return self._terms_in[text]


@cache
def load_terms() -> Terms:
    """Return the terms of the spec.

    Raises:
        SpecError: the page is malformed.
    """
    return Terms(read_page(PAGE))


def definitions(terms: Mapping[str, Term]) -> Iterable[str]:
    """Return a line with name and definition for each term."""
    return [f"{name}: {term.definition}" for name, term in terms.items()]


def _inflected(form: str) -> str:
    """Return a pattern that matches a word and its regular inflections."""
    last = form[-1]
    base = re.escape(form).replace(r"\ ", r"\s+")
    if last == "e":
        return rf"{base[:-1]}(?:e|es|ed|ing)"
    return rf"{base}(?:s|es|ed|ing|{last}ed|{last}ing)?"
