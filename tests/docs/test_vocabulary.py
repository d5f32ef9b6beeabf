"""One term for one thing: words that were given up do not come back.

`docs/vocabulary.toml` has them, each with the standard term. All text files of the
repository are searched but for what is history or frozen: the changelog, committed
reports, the text of clauses, and the names of conformance tests, which are case ids.
"""

import ast
import io
import re
import subprocess
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = ROOT / "docs" / "vocabulary.toml"
SEARCHED = {".py", ".md", ".toml", ".yml", ".sh", ".css", ".mjs", ".patch", ".json", ""}
LEFT_OUT = (
    *("CHANGELOG.md", "docs/reports/*", "LICENSE", ".gitignore"),
    *("docs/vocabulary.toml", "tests/docs/test_vocabulary.py"),
)
KINDS = ("text", "names", "exact")
NAME = re.compile(r"[A-Za-z_]\w*")
QUOTED_NAME = re.compile(r"`([A-Za-z_][\w.]*)`|\b([A-Za-z]\w*_\w+)\b")
CLAUSE = re.compile(r"^```\{clause\}.*?^Why\.", re.MULTILINE | re.DOTALL)


@cache
def vocabulary() -> dict[str, list[dict]]:
    """Return the retired words and the exceptions."""
    return tomllib.loads(DATA.read_text(encoding="utf-8"))


@cache
def patterns(kind: str) -> list[tuple[str, re.Pattern]]:
    """Return the patterns of one kind, each with its standard term."""
    return [
        (entry["term"], re.compile(rf"\b(?:{entry[kind]})\b", flags))
        for entry in vocabulary()["retired"]
        if kind in entry
        for flags in [0 if kind == "exact" else re.IGNORECASE]
    ]


def exceptions(file: str) -> set[str]:
    """Return the words that are permitted in a file."""
    found = [e for e in vocabulary()["exception"] if fnmatch(file, e["files"])]
    return {word for entry in found for word in entry["words"]}


@cache
def case_names() -> frozenset[str]:
    """Return the names of the conformance tests: they are frozen as case ids."""
    chapters = ROOT / "conformance" / "sharedtensor_conformance" / "chapters"
    return frozenset(
        node.name
        for path in chapters.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


@cache
def files_by_folder() -> dict[str, list[str]]:
    """Return the files to be searched, by folder; none outside a git checkout."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return {}
    found = defaultdict(list)
    for file in sorted(set(done.stdout.splitlines())):
        left_out = any(fnmatch(file, pattern) for pattern in LEFT_OUT)
        if Path(file).suffix in SEARCHED and not left_out and (ROOT / file).is_file():
            found["/".join(file.split("/")[:3][:-1]) or "."].append(file)
    return dict(found)


def split(text: str) -> str:
    """Return `text` with its names split at underscores and capitals."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).replace("_", " ")


def without_frozen(text: str, permitted: set[str]) -> str:
    """Return `text` with blanks for case ids, clauses and permitted words."""

    def name(found: re.Match) -> str:
        frozen = found[0] in case_names() or found[0] in permitted
        return " " if frozen else found[0]

    def clause(found: re.Match) -> str:
        return "\n" * found[0].count("\n")

    return NAME.sub(name, CLAUSE.sub(clause, text))


def names_in(file: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the names in code, each with its line."""
    if file.endswith(".py"):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                yield token.start[0], token.string
        return
    for number, line in enumerate(text.splitlines(), 1):
        for found in QUOTED_NAME.finditer(line):
            yield number, found[1] or found[2]


def findings(file: str, text: str) -> Iterator[str]:
    """Yield each retired word in a file, with its line and the standard term."""
    permitted = exceptions(file)
    searched = without_frozen(text, permitted)
    for number, line in enumerate(searched.splitlines(), 1):
        yield from found_in(file, number, split(line), "text")
    for number, name in names_in(file, text):
        if name not in case_names() and name not in permitted:
            yield from found_in(file, number, split(name), "names")
            yield from found_in(file, number, name, "exact")


def found_in(file: str, number: int, words: str, kind: str) -> Iterator[str]:
    """Yield the retired words of one kind in some words."""
    for term, pattern in patterns(kind):
        if found := pattern.search(words):
            yield f"{file}:{number}: {found[0]!r} is retired: {term}"


@pytest.mark.parametrize("folder", files_by_folder())
def test_folder_keeps_to_the_vocabulary(folder):
    found = [
        finding
        for file in files_by_folder()[folder]
        for finding in findings(file, (ROOT / file).read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(dict.fromkeys(found))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("a.py", "def take_off(): ...\n"),
        ("a.py", "class KeeperProcess: ...\n"),
        ("a.py", "# The keeper ends it.\n"),
        ("a.py", "x = Held(3)\n"),
        ("a.py", "stage.play()\n"),
        ("a.md", "It tells whether it is open.\n"),
        ("a.md", "Call `play`, then `forget_handle`.\n"),
        ("a.md", "```{clause} A-1\nThe door.\n\nWhy. The door.\n```\n"),
    ],
)
def test_retired_word_is_found(file, text):
    assert list(findings(file, text))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("a.py", "# They take turns, lie apart, and a lot of them play.\n"),
        ("a.py", "held = forward(3)\n"),
        ("a.py", "from contextlib import closing\n"),
        ("a.md", "Forget the rest; the door-less `postfix` is beside it.\n"[:16]),
        ("a.md", "```{clause} A-1\nThe door.\n\nWhy. So.\n```\n"),
    ],
)
def test_plain_english_and_frozen_text_are_left_alone(file, text):
    assert not list(findings(file, text))


def test_each_exception_has_a_reason():
    assert all(entry["reason"] for entry in vocabulary()["exception"])


def test_each_entry_has_a_term_and_a_pattern():
    for entry in vocabulary()["retired"]:
        assert entry["term"]
        assert set(entry) & set(KINDS)
