"""Finds the tests, the code and the mutants that cite each clause.

A test cites a clause by ``@clause("ID")``, a mutant by ``@mutant("name", "ID")``, and
the reference in the docstring of the code that implements it. All three are read from
syntax trees and never imported. So this works without an installed reference and gives
the line of each place. The command ``shared-tensor-spec clauses`` and the site show the
results.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from sharedtensor_conformance.clauses import Clause
from sharedtensor_conformance.definitions import (
    Definition,
    Definitions,
    Folder,
    Module,
    Place,
    definitions_in,
)

CLAUSE_ID = re.compile(r"\b[A-Z]+-\d+\b")
CITING_SENTENCE = re.compile(r"\s*\bClauses? [A-Z]+-\d+[^.]*\.")


@dataclass(frozen=True)
class Sources:
    """The folders whose code cites clauses; `reference` may be missing."""

    tests: Folder
    mutants: Folder
    reference: Folder | None

    @classmethod
    def of_checkout(cls, root: Path) -> Sources:
        """Return the folders of the checkout at `root`, with paths from there."""
        suite = root / "conformance" / "sharedtensor_conformance"
        return cls._of(suite, root, Folder(root / "reference" / "sharedtensor", root))

    @classmethod
    def installed(cls) -> Sources:
        """Return the folders of the packages as they are installed.

        In an editable install these are the folders of the checkout.
        """
        suite = Path(str(files("sharedtensor_conformance")))
        if suite.parent.name == "conformance" and (suite.parents[1] / "spec").is_dir():
            return cls.of_checkout(suite.parents[1])
        found = importlib.util.find_spec("sharedtensor")
        places = (found.submodule_search_locations if found else None) or []
        reference = [Folder(Path(place), Path(place).parent) for place in places]
        return cls._of(suite, suite.parent, reference[0] if reference else None)

    @classmethod
    def _of(cls, suite: Path, root: Path, reference: Folder | None) -> Sources:
        tests = Folder(suite / "chapters", root, "test_*.py")
        return cls(tests, Folder(suite / "mutants" / "chapters", root), reference)


@dataclass(frozen=True)
class Citation:
    """One place in the code that cites clauses.

    Args:
        name: the name of the test or mutant, or the qualified name in the reference.
        sentence: what it says, in one sentence.
        replaces: for a mutant, what it replaces in the reference.
    """

    name: str
    clauses: tuple[str, ...]
    sentence: str
    file: str
    line: int
    replaces: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """The citations in tests, code and mutants; `code` is empty without a reference."""

    tests: list[Citation]
    code: list[Citation]
    mutants: list[Citation]
    has_reference: bool = True

    def everything(self) -> list[Citation]:
        """Return the citations of all kinds."""
        return [*self.tests, *self.code, *self.mutants]


@dataclass(frozen=True)
class Problem:
    """A clause without evidence, or a citation that leads nowhere.

    Args:
        kind: ``evidence`` that a clause lacks, a ``citation`` of an unknown clause, or
            ``replaces`` for a mutant that replaces nothing in the reference.
    """

    kind: str
    sentence: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.sentence}"


def read_evidence(sources: Sources) -> Evidence:
    """Return everything that cites a clause."""
    reference = sources.reference
    return Evidence(
        tests=tests(sources.tests),
        code=code(reference) if reference else [],
        mutants=mutants(sources.mutants, reference),
        has_reference=reference is not None,
    )


def citing(citations: Iterable[Citation], clause: str) -> list[Citation]:
    """Return those of `citations` that cite `clause`."""
    return [citation for citation in citations if clause in citation.clauses]


def tests(folder: Folder) -> list[Citation]:
    """Return the tests that are decorated with ``@clause("ID", ...)``."""
    return [
        Citation(item.name, ids, sentence_of(item.name), module.file, item.lineno)
        for module in folder.modules()
        for item in definitions_in(module.tree)
        if (ids := arguments_of(item, "clause"))
    ]


def mutants(folder: Folder, reference: Folder | None) -> list[Citation]:
    """Return the mutants that are decorated with ``@mutant("name", "ID", ...)``."""
    definitions = Definitions(reference) if reference else None
    return [
        Citation(
            name=found[0],
            clauses=found[1:],
            sentence=first_sentence(item),
            file=module.file,
            line=item.lineno,
            replaces=tuple(
                definitions.place(target) if definitions else Place(target)
                for target in replaced_by(item, module)
            ),
        )
        for module in folder.modules()
        for item in definitions_in(module.tree)
        if (found := arguments_of(item, "mutant"))
    ]


def code(folder: Folder) -> list[Citation]:
    """Return the modules, classes and functions whose docstring cites a clause."""
    found = []
    for module in folder.modules():
        for name, item in documented_in(module.tree, module.name):
            cited = CLAUSE_ID.findall(ast.get_docstring(item) or "")
            if ids := tuple(dict.fromkeys(cited)):
                line = getattr(item, "lineno", 1)
                sentence = first_sentence(item)
                found.append(Citation(name, ids, sentence, module.file, line))
    return found


def problems(clauses: Iterable[Clause], evidence: Evidence) -> Iterator[Problem]:
    """Yield each clause without evidence, and each citation that leads nowhere."""
    known = {clause.id: clause for clause in clauses}
    for clause in known.values():
        for said in _missing(clause, evidence):
            sentence = f"{clause.id} {said}"
            yield Problem("evidence", sentence, clause.file, clause.line)
    for citation in evidence.everything():
        for said in _unknown(citation, known, evidence):
            sentence = f"{citation.name} {said}"
            yield Problem("citation", sentence, citation.file, citation.line)
    for mutant in evidence.mutants if evidence.has_reference else []:
        for said in _unplaced(mutant):
            sentence = f"{mutant.name} {said}"
            yield Problem("replaces", sentence, mutant.file, mutant.line)


def _missing(clause: Clause, evidence: Evidence) -> Iterator[str]:
    if not citing(evidence.tests, clause.id):
        yield "has no test"
    if not citing(evidence.mutants, clause.id):
        yield "has no mutant"
    if not evidence.has_reference:
        return
    cited = citing(evidence.code, clause.id)
    if not cited and not clause.no_code:
        yield "is cited by no code of the reference, and has no :no-code: reason"
    if cited and clause.no_code:
        yield f"has a :no-code: reason, and yet {cited[0].name} cites it"


def _unknown(
    citation: Citation, known: dict[str, Clause], evidence: Evidence
) -> Iterator[str]:
    """Yield a complaint for each clause that a citation names and that does not exist.

    A docstring may contain other words of this form (``UTF-8``). So only those with the
    prefix of a chapter count there. Tests and mutants cite only clauses.
    """
    chapters = {clause.chapter for clause in known.values()}
    for id in citation.clauses:
        chapter = id.partition("-")[0]
        if id not in known and (citation not in evidence.code or chapter in chapters):
            yield f"cites the clause {id}, which does not exist"


def _unplaced(mutant: Citation) -> Iterator[str]:
    """Yield the reasons why a mutant does not lead to the code that it replaces."""
    if not mutant.replaces:
        yield "does not say what it replaces"
    for place in mutant.replaces:
        if not place.file:
            yield f"replaces {place.name}, which the reference does not define"


def sentence_of(name: str) -> str:
    """Return the name of a test as a sentence."""
    return name.removeprefix("test_").replace("_", " ")


def first_sentence(item: Definition | ast.Module) -> str:
    """Return the first paragraph of a docstring, without its citations of clauses."""
    paragraph = (ast.get_docstring(item) or "").partition("\n\n")[0]
    return CITING_SENTENCE.sub("", " ".join(paragraph.split()))


def documented_in(
    scope: Definition | ast.Module, name: str
) -> Iterator[tuple[str, Definition | ast.Module]]:
    """Yield everything in `scope` that has a docstring, with its qualified name."""
    if ast.get_docstring(scope):
        yield name, scope
    for node in scope.body:
        if isinstance(node, Definition):
            yield from documented_in(node, f"{name}.{node.name}")


def arguments_of(item: Definition, decorator: str) -> tuple[str, ...]:
    """Return the literal strings that `decorator` of `item` was called with."""
    return tuple(
        argument.value
        for call in calls_of(item, decorator)
        for argument in _unpacked(call.args)
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    )


def _unpacked(arguments: Iterable[ast.expr]) -> Iterator[ast.expr]:
    """Yield the arguments of a call, and the items of a starred tuple one by one."""
    for argument in arguments:
        match argument:
            case ast.Starred(value=ast.Tuple(elts=several)):
                yield from several
            case _:
                yield argument


def replaced_by(mutant: Definition, module: Module) -> list[str]:
    """Return the names that a mutant replaces, given as strings or as constants."""
    known, names = module.constants(), []
    for call in calls_of(mutant, "mutant"):
        for value in (k.value for k in call.keywords if k.arg == "replaces"):
            for node in value.elts if isinstance(value, ast.Tuple) else [value]:
                text = ast.unparse(node)
                names.append(known.get(text, text.strip("'")))
    return names


def calls_of(item: Definition, decorator: str) -> list[ast.Call]:
    """Return the decorators of `item` that call `decorator`."""
    calls = [call for call in item.decorator_list if isinstance(call, ast.Call)]
    return [call for call in calls if name_of(call.func) == decorator]


def name_of(node: ast.AST) -> str:
    """Return the last part of a dotted name."""
    return str(getattr(node, "attr", getattr(node, "id", "")))
