"""What all commands share: their structure, exit statuses and usage errors."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

YES, NO, WRONG_USE, INTERRUPTED = 0, 1, 4, 130

STATUSES = """\
  4    usage error: an unknown option or name, or a file that cannot be read or written
  130  interrupted (Ctrl-C)"""
"""The exit statuses that mean the same in all commands, as the help shows them."""


class WrongUse(Exception):
    """A usage error; the message is one sentence."""


class Parser(argparse.ArgumentParser):
    """A parser that reports a usage error in one sentence and exits with status 4."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit."""
        self.exit(WRONG_USE, f"{self.prog}: {message} (see {self.prog} --help)\n")


@dataclass(frozen=True)
class Command:
    """One command of ``shared-tensor-spec``.

    Args:
        name: the name on the command line.
        purpose: one line for the list of commands.
        teaching: the help text below the options: explanation, examples and, at the
            end, the exit statuses 0 and 1.
        add_options: adds the options and arguments to a parser.
        run: executes the command and returns the exit status.
    """

    name: str
    purpose: str
    teaching: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]

    def add_to(self, commands: argparse._SubParsersAction[Any]) -> None:
        """Add the command's parser to those of the others."""
        parser = commands.add_parser(
            self.name,
            help=self.purpose,
            description=f"{self.purpose[0].upper()}{self.purpose[1:]}.",
            epilog=f"{self.teaching}\n{STATUSES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_options(parser)
        parser.set_defaults(run=self.run)


def listed(names: Iterable[str]) -> str:
    """Return names, separated by commas, as indented lines for a help text."""
    return textwrap.fill(
        ", ".join(names),
        width=86,
        initial_indent="  ",
        subsequent_indent="  ",
        break_on_hyphens=False,
    )


def positive(kind: type[int] | type[float]) -> Callable[[str], int | float]:
    """Return a function that converts an option's text to a positive number."""

    def convert(text: str) -> int | float:
        number = kind(text)
        if not 0 < number < float("inf"):
            raise ValueError(text)
        return number

    convert.__name__ = f"positive {kind.__name__}"  # argparse puts it into its message
    return convert


def write(path: str, content: str) -> None:
    """Write a file that the user named, and create its parent folders.

    Raises:
        WrongUse: the file cannot be written.
    """
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(content, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise WrongUse(f"{path} cannot be written: {error.strerror}") from error
