"""One term for one thing: words that were given up do not come back.

`docs/vocabulary.toml` has them, each with the standard term. All text files of the
repository are searched but for what is history or frozen: `docs/history.md`, committed
reports, the text of clauses, and the names of conformance tests, which are case ids.
"""

import io
import re
import subprocess
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache, cached_property
from pathlib import Path

import pytest
from sharedtensor_conformance.evidence import Sources, read_evidence

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "conformance" / "sharedtensor_conformance"
DATA = ROOT / "docs" / "vocabulary.toml"
SEARCHED = {".py", ".md", ".toml", ".yml", ".sh", ".css", ".mjs", ".patch", ".json", ""}
LEFT_OUT = (
    *("docs/history.md", "docs/reports/*", "LICENSE", ".gitignore"),
    *("docs/vocabulary.toml", "tests/docs/test_vocabulary.py"),
    "evidence/trials/arena/arena/*",  # it is kept as its author wrote it
)
KINDS = ("text", "names", "exact")
NAME = re.compile(r"[A-Za-z_]\w*")
QUOTED_NAME = re.compile(r"`([A-Za-z_][\w.]*)`|\b([A-Za-z]\w*_\w+)\b")
CLAUSE = re.compile(r"^```\{clause\}.*?^Why\.", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Retired:
    """A word that is not used, in some files, and the standard term."""

    term: str
    kind: str
    pattern: re.Pattern
    files: tuple[str, ...]

    def applies_to(self, file: str) -> bool:
        return any(fnmatch(file, pattern) for pattern in self.files)


@cache
def vocabulary() -> dict[str, list[dict]]:
    """Return the entries as they are written."""
    return tomllib.loads(DATA.read_text(encoding="utf-8"))


@cache
def retired() -> list[Retired]:
    """Return the words that are not used."""
    return [
        Retired(
            entry["term"],
            kind,
            re.compile(rf"\b(?:{entry[kind]})\b", 0 if kind == "exact" else re.I),
            tuple(entry.get("files", ["*"])),
        )
        for entry in vocabulary()["retired"]
        for kind in KINDS
        if kind in entry
    ]


def exceptions(file: str) -> set[str]:
    """Return the words that are permitted in a file."""
    found = [e for e in vocabulary()["exception"] if fnmatch(file, e["files"])]
    return {word for entry in found for word in entry["words"]}


@cache
def frozen_names() -> frozenset[str]:
    """Return the names of conformance tests, of mutants and of causes.

    Committed reports name them, and the first are case ids.
    """
    evidence = read_evidence(Sources.of_checkout(ROOT))
    causes = (SUITE / "expectations" / "causes").rglob("*.py")
    cited = {citation.name for citation in [*evidence.tests, *evidence.mutants]}
    return frozenset(cited | {path.stem for path in causes})


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


class Searched:
    """A file in the forms that the kinds of patterns are searched in, line by line."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.permitted = frozen_names() | exceptions(file)
        without_clauses = CLAUSE.sub(lambda m: "\n" * m[0].count("\n"), text)
        self.whole = NAME.sub(self.unless_permitted, without_clauses)
        self.text = split(self.whole)

    def unless_permitted(self, name: re.Match) -> str:
        return "_" if name[0] in self.permitted else name[0]

    @cached_property
    def exact(self) -> str:
        """The names in code alone."""
        lines = [[] for _ in self.whole.splitlines()]
        if self.file.endswith(".py"):
            for token in tokenize.generate_tokens(io.StringIO(self.whole).readline):
                if token.type == tokenize.NAME:
                    lines[token.start[0] - 1].append(token.string)
            return "\n".join(map(" ".join, lines))
        for names, line in zip(lines, self.whole.splitlines(), strict=True):
            names += [m[1] or m[2] for m in QUOTED_NAME.finditer(line)]
        return "\n".join(map(" ".join, lines))

    @cached_property
    def names(self) -> str:
        """The names in code alone, split."""
        return split(self.exact)


def findings(file: str, text: str) -> Iterator[str]:
    """Yield each retired word in a file, with its line and the standard term."""
    searched = Searched(file, text)
    for one in retired():
        whole = searched.whole if one.kind == "exact" else searched.text
        if not one.applies_to(file) or not one.pattern.search(whole):
            continue  # so most files need not be taken apart
        form = getattr(searched, one.kind)
        for found in one.pattern.finditer(form):
            line = form.count("\n", 0, found.start()) + 1
            yield f"{file}:{line}: {found[0]!r} is retired: {one.term}"


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
        ("reference/a.py", "def take_off(): ...\n"),
        ("conformance/a.py", "stage.play()\n"),
        ("a.py", "class WardProcess: ...\n"),
        ("a.py", "# The household ends it.\n"),
        ("a.py", "x = Held(3)\n"),
        ("a.md", "Say whether it is open.\n"),
        ("reference/a.md", "Call `post_it` first.\n"),
        ("a.md", "```{clause} A-1\nThe door.\n\nWhy. The door.\n```\n"),
        ("spec/a.md", "It closes its door.\n"),
    ],
)
def test_retired_word_is_found(file, text):
    assert list(findings(file, text))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("conformance/a.py", "# They take turns and play.\n"),
        ("a.py", "held = forward(3)\n"),
        ("a.py", "stage.play()\n"),
        ("a.py", "from contextlib import closing\n"),
        ("a.py", "heirs_of_one_manager = 3\n"),
        ("a.md", "Nobody can tell whether it is beside the postfix.\n"),
        ("a.md", "```{clause} A-1\nThe door.\n\nWhy. So.\n```\n"),
    ],
)
def test_plain_english_and_frozen_text_are_left_alone(file, text):
    assert not list(findings(file, text))


def test_each_exception_has_a_reason():
    assert all(entry["reason"] for entry in vocabulary()["exception"])


EXCEPTED = [
    (entry["files"], word)
    for entry in vocabulary()["exception"]
    for word in entry["words"]
]


@pytest.mark.skipif(not files_by_folder(), reason="this is no git checkout")
@pytest.mark.parametrize(("pattern", "word"), EXCEPTED)
def test_each_exception_permits_a_word_that_is_there(pattern, word, monkeypatch):
    every = [file for files in files_by_folder().values() for file in files]
    texts = {
        file: text
        for file in every
        if fnmatch(file, pattern)
        and word in NAME.findall(text := (ROOT / file).read_text(encoding="utf-8"))
    }
    permitted = exceptions
    monkeypatch.setitem(globals(), "exceptions", lambda file: permitted(file) - {word})
    assert any(list(findings(file, text)) for file, text in texts.items())


def test_each_entry_has_a_term_and_a_pattern():
    for entry in vocabulary()["retired"]:
        assert entry["term"]
        assert set(entry) & set(KINDS)
