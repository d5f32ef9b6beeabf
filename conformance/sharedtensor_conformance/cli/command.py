"""What the commands have in common: their form, their statuses, their wrong use."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

YES, NO, WRONG_USE, INTERRUPTED = 0, 1, 4, 130

STATUSES = "exit status: 0 yes, 1 no, 4 wrong use, 130 interrupted"


class WrongUse(Exception):
    """The command was used wrongly; the message is one sentence."""


class Parser(argparse.ArgumentParser):
    """A parser that answers wrong use with one sentence and status 4."""

    def error(self, message: str) -> NoReturn:
        """End with the sentence."""
        self.exit(WRONG_USE, f"{self.prog}: {message} (see {self.prog} --help)\n")


@dataclass(frozen=True)
class Command:
    """One command of ``shared-tensor-spec``.

    Args:
        name: what one types.
        purpose: a line for the list of commands.
        teaching: what its help says below the options, with examples.
        add_options: adds its options and arguments to a parser.
        run: does it and returns the exit status.
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
            epilog=f"{self.teaching}\n\n{STATUSES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.add_options(parser)
        parser.set_defaults(run=self.run)


def positive(kind: type[int] | type[float]) -> Callable[[str], int | float]:
    """Return what converts the text of an option to a positive number."""

    def convert(text: str) -> int | float:
        number = kind(text)
        if not 0 < number < float("inf"):
            raise ValueError(text)
        return number

    convert.__name__ = f"positive {kind.__name__}"  # argparse names it in its sentence
    return convert


def write(path: str, content: str) -> None:
    """Write a file that the user named, and the folders on the way to it.

    Raises:
        WrongUse: it cannot be written.
    """
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(content, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise WrongUse(f"{path} cannot be written: {error.strerror}") from error
