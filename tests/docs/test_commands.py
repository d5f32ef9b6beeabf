"""The commands that README and guides show are run, so they stay true.

A block of commands carries a comment before its fence: ``<!-- executed -->``,
``<!-- executed, ends with STATUS -->``, or ``<!-- not executed: the reason -->``. A
block without one fails here. Lines of a block that are no commands are lines of the
output, in their order; others may stand between them, and versions may differ.
"""

import importlib.util
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEADLINE = 600.0  # seconds: a busy machine builds the site in three minutes

BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^>]*) -->\n)?^```(?:console|bash|sh|shell)\n(?P<body>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
EXECUTED = re.compile(r"executed(, ends with (?P<status>\d+))?")
VERSION = re.compile(r"\d+(\.\d+)+")


@dataclass(frozen=True)
class Block:
    """Commands as a page shows them."""

    where: str
    mark: str
    commands: tuple[str, ...]
    output: tuple[str, ...] = ()

    @property
    def executed(self) -> bool:
        return bool(EXECUTED.fullmatch(self.mark))

    @property
    def status(self) -> int:
        """With which each of the commands has to end."""
        found = EXECUTED.fullmatch(self.mark)
        return int(found["status"] or 0)


def commands_in(body: str) -> tuple[str, ...]:
    """Return what follows the prompts."""
    return tuple(
        line.removeprefix("$ ") for line in body.splitlines() if line.startswith("$ ")
    )


def output_in(body: str) -> tuple[str, ...]:
    """Return the lines that follow no prompt."""
    return tuple(line for line in body.splitlines() if not line.startswith("$ "))


def missing_in(output: str, shown: tuple[str, ...]) -> list[str]:
    """Return the first of the `shown` lines that the output lacks in this order."""
    printed = iter(VERSION.sub("N", output).splitlines())
    for line in shown:
        if VERSION.sub("N", line) not in printed:
            return [line]
    return []


def blocks_in(text: str, name: str) -> list[Block]:
    """Return the blocks of commands in the Markdown `text`."""
    return [
        Block(
            f"{name}:{text.count(chr(10), 0, found.start('body'))}",
            (found["mark"] or "").strip(),
            commands_in(found["body"]),
            output_in(found["body"]),
        )
        for found in BLOCK.finditer(text)
    ]


def pages() -> list[Path]:
    """Return the pages that people read."""
    docs = (ROOT / "docs").rglob("*.md")
    shown = [page for page in docs if "_build" not in page.parts]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(shown)]


def all_blocks() -> list[Block]:
    return [
        block
        for page in pages()
        for block in blocks_in(
            page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix()
        )
    ]


def blocks_by_page() -> list[list[Block]]:
    """Return the blocks to run, each only once, those of a page in one list.

    A block may read what an earlier one of its page has written.
    """
    once: dict[tuple[str, ...], Block] = {}
    for block in filter(lambda block: block.executed, all_blocks()):
        once.setdefault(block.commands, block)
    grouped: dict[tuple[str, bool], list[Block]] = {}
    for block in once.values():
        page = block.where.partition(":")[0]
        grouped.setdefault((page, needs_sphinx(block)), []).append(block)
    return list(grouped.values())


def needs_sphinx(block: Block) -> bool:
    return any("-m sphinx" in command for command in block.commands)


def run(command: str) -> tuple[int, str]:
    """Run one line in a shell of its own; return its status and output."""
    folder = str(Path(sys.executable).parent)
    outer = ("PYTEST_", "COV_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(outer)}
    environment["PATH"] = folder + os.pathsep + environment["PATH"]
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return 124, f"{output}\nnot finished within {DEADLINE:g} s"
    return process.returncode, output


def as_parameter(blocks: list[Block]):
    """Return the blocks as a parameter, which is skipped where it lacks Sphinx."""
    name = f"from {blocks[0].where}"
    if not needs_sphinx(blocks[0]):
        return pytest.param(blocks, id=name)
    missing = importlib.util.find_spec("sphinx") is None
    reason = "Sphinx is not installed: pip install -e '.[docs]'"
    marks = (pytest.mark.sphinx, pytest.mark.skipif(missing, reason=reason))
    return pytest.param(blocks, id=name, marks=marks)


@pytest.mark.parametrize("blocks", [as_parameter(each) for each in blocks_by_page()])
@pytest.mark.takes(30)
def test_commands_end_and_print_as_shown(blocks):
    for block in blocks:
        printed = ""
        for command in block.commands:
            status, output = run(command)
            assert status == block.status, f"{block.where}: {command}\n{output}"
            printed += output
        assert missing_in(printed, block.output) == [], f"{block.where}: {printed}"


@pytest.mark.parametrize("block", all_blocks(), ids=lambda block: block.where)
def test_block_of_commands_says_whether_it_is_executed(block):
    assert block.commands, "a block of commands has lines that begin with '$ '"
    assert block.executed or re.fullmatch(r"not executed: .+", block.mark), (
        "put <!-- executed --> or <!-- not executed: reason --> on the line before"
    )


def test_blocks_are_found_with_their_marks():
    text = (
        "# A page\n\n<!-- executed -->\n```console\n$ true\noutput\n$ false\n```\n\n"
        "```python\n$ no\n```\n\n```console\n$ bare\n```\n"
    )
    first, second = blocks_in(text, "page.md")
    assert first == Block("page.md:4", "executed", ("true", "false"), ("output",))
    assert (first.status, second.mark) == (0, "")
    assert Block("page.md:4", "executed, ends with 1", ()).status == 1
    for mark in ("executed, ends", "not executed: slow"):
        assert not Block("page.md:4", mark, ()).executed


@pytest.mark.parametrize(
    ("shown", "missing"),
    [
        (("numpy 2.4.6 fails", "b"), []),
        (("b", "numpy 2.4.6 fails"), ["numpy 2.4.6 fails"]),
        (("numpy 2.4.6 holds",), ["numpy 2.4.6 holds"]),
        (("b", "b"), ["b"]),
    ],
)
def test_output_that_a_page_shows_is_printed_in_its_order(shown, missing):
    assert missing_in("numpy 2.5.0 fails\na\nb\n", shown) == missing


def test_run_reports_a_failing_command():
    assert run("echo out; echo err >&2; exit 3") == (3, "out\nerr\n")
