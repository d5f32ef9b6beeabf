"""Shows the results of the benchmark as plain text."""

from __future__ import annotations

from collections.abc import Iterable

from sharedtensor_conformance.report.scope import plural

from sharedtensor_bench.results import Result, Results, slowdown_of_others
from sharedtensor_bench.rows import ROWS

HEAD = ("implementation", "strategy", "median", "quartiles", "over floor", "others")


def render(results: Results) -> str:
    """Return the results as text: the machine, then a table for each cell."""
    parts = ["\n".join(circumstances(results))]
    for title, found in by_cell(results.results).items():
        lines = [row_of(result, found) for result in found]
        parts.append(f"{title}\n{aligned([HEAD, *lines])}")
    if results.scaling:
        parts.append(scaling(results))
    return "\n\n".join(parts) + "\n"


def circumstances(results: Results) -> list[str]:
    """Return lines about the machine, the repeats and the columns."""
    machine, wake_up = results.machine, results.machine["wake_up"]
    lines = [
        f"{machine['processor']}, {machine['cores']} cores, {machine['kernel']}, "
        f"Python {machine['python']}, load {machine['load']}",
        f"wake-up: {wake_up['mode']} ({wake_up['median_us']:.1f} us for the round trip "
        "of a byte)",
        f"{plural(results.options['repeats'], 'repeat')} in {results.seconds:.0f} s; "
        "median and quartiles over the repeats",
        "over floor: how many times as long as bytes of the same size, a memory copy "
        "or a plain child process",
        "others: how many times as long another implementation takes",
    ]
    return lines + ([warning] if (warning := busy(results)) else [])


def busy(results: Results) -> str:
    """Return a warning if the machine was busy with other work, else ""."""
    machine = results.machine
    if machine["load"] <= machine["cores"] / 2:
        return ""
    return (
        f"the machine was busy with other work (load {machine['load']} on "
        f"{machine['cores']} cores): rely only on the orders of magnitude, and not on "
        "the wake-up"
    )


def by_cell(found: Iterable[Result]) -> dict[str, list[Result]]:
    """Return the results by the title of their cell."""
    cells: dict[str, list[Result]] = {}
    for result in found:
        axes = [axis for axis in (result.channel, result.start_method) if axis]
        where = f" ({', '.join(axes)})" if axes else ""
        meaning = f": {ROWS[result.row].meaning}" if result.row in ROWS else ""
        title = f"{result.row}{where}{meaning}"
        cells.setdefault(title, []).append(result)
    return cells


def row_of(result: Result, others: list[Result]) -> tuple[str, ...]:
    """Return one line of a table."""
    name, strategy = result.implementation, result.strategy
    if result.absent:
        return name, strategy, result.absent, "", "", ""
    middle, quartiles, times = result.median, result.quartiles, result.over_floor
    spread = " to ".join(number(q) for q in quartiles or ())
    slowdowns = slowdown_of_others(result, others)
    compared = ", ".join(f"{other} {ratio:.2g}" for other, ratio in slowdowns.items())
    shown = "" if middle is None else figure(middle, result.unit)
    return name, strategy, shown, spread, f"{times:.2f}" if times else "", compared


def figure(value: float, unit: str) -> str:
    """Return a figure with its unit."""
    if unit != "us":
        return f"{value:.1f} {unit}"
    return f"{number(value)} us"


def number(value: float) -> str:
    """Return a figure with a sensible number of digits."""
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def ratio(value: float) -> str:
    """Return a ratio with two decimals, or at least three digits."""
    return (
        f"{value:.2f}"
        if value < 10
        else f"{value:,.1f}"
        if value < 100
        else (f"{value:,.0f}")
    )


def aligned(lines: list[tuple[str, ...]]) -> str:
    """Return lines of cells as text in columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  "
        + "  ".join(
            cell.ljust(width) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def scaling(results: Results) -> str:
    """Return the table of the scaling."""
    lines: list[tuple[str, ...]] = [
        ("grows", "to", "implementation", "strategy", "round trip")
    ]
    for point in results.scaling:
        taken = point["median"]
        lines.append(
            (
                point["what"],
                f"{point['to']:,}",
                point["implementation"],
                point["strategy"],
                point["absent"] if taken is None else figure(taken, "us"),
            )
        )
    return f"scaling\n{aligned(lines)}"
