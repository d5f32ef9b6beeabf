"""What a verdict says of one strategy under one start method.

Users have one strategy and one start method. What breaks under others does not concern
them, so the matrix and each broken verdict say where.
"""

from __future__ import annotations

from itertools import product

from clauses.reports import Column, Judgement, Setting

STRATEGIES = ("file_descriptor", "file_system")
START_METHODS = ("fork", "spawn", "forkserver")
SETTINGS = [Setting(*pair) for pair in product(STRATEGIES, START_METHODS)]
"""All of them; the script of the matrix names one by its place here."""


def holds_by_setting(judgement: Judgement) -> dict[Setting, bool | None]:
    """Return whether a clause holds with each setting; None if no case says so."""
    return {setting: judgement.holds_with(setting) for setting in SETTINGS}


def varies(judgement: Judgement) -> bool:
    """Return whether a clause is broken with some settings and holds with others."""
    return {True, False} <= set(holds_by_setting(judgement).values())


MARKS = {True: "h", False: "b", None: "-"}


def setting_marks(judgement: Judgement) -> str:
    """Return a letter for each setting: held, broken, or a dash; "" if all agree."""
    found = [MARKS[holds] for holds in holds_by_setting(judgement).values()]
    return "".join(found) if len(set(found)) > 1 else ""


def broken_with(judgement: Judgement) -> dict[str, list[str]]:
    """Return the start methods under which a clause is broken, by strategy."""
    found: dict[str, list[str]] = {}
    for setting, holds in holds_by_setting(judgement).items():
        if holds is False:
            found.setdefault(setting.strategy, []).append(setting.start_method)
    return found


def broken_by_setting(column: Column) -> dict[Setting, int]:
    """Return how many clauses are broken with each setting that was judged."""
    found = [holds_by_setting(one) for one in column.judgements.values()]
    return {
        setting: sum(one[setting] is False for one in found)
        for setting in SETTINGS
        if any(one[setting] is not None for one in found)
    }
