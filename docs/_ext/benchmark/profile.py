"""Shows of what a message, a child's start and a run of the suite consist."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from docutils import nodes
from elements import missing, paragraph, read_json, table
from sphinx.util.docutils import SphinxDirective

Profile = dict[str, Any]
WHERE = ("Python", "kernel")


class ProfileDirective(SphinxDirective):
    """``{benchmark-profile} FILE``: what ``ci/profile_reference.py`` has written."""

    required_arguments = 1
    needed = ("repeats", "messages", "steps", "sides", "starts")

    def run(self) -> list[nodes.Node]:
        """Render the file; one that is missing is said to be missing."""
        fields = itemgetter(*self.needed)
        found = read_json(self.env, self.arguments[0], "profile", fields)
        if found is None:
            text = "Nothing has been measured yet; no profile is committed."
            return [missing(text)]
        return self.rendered(found)

    def rendered(self, found: Profile) -> list[nodes.Node]:
        """Return the steps of a message, and what a child's start consists of."""
        repeats, messages = found["repeats"], found["messages"]
        how = f"Medians of {repeats} repeats of {messages} messages."
        return [
            paragraph(how),
            steps(found["steps"]),
            sides(found["sides"]),
            starts(found["starts"]),
        ]


class SuiteProfileDirective(ProfileDirective):
    """``{suite-profile} FILE``: what ``ci/profile_suite.py`` has written."""

    needed = ("cases", "wall", "cores", "python", "options", "kinds")

    def rendered(self, found: Profile) -> list[nodes.Node]:
        """Return how many processes of each kind a run had, and what they used."""
        kinds = found["kinds"]
        used = sum(kind["seconds"] for kind in kinds)
        share = used / (found["cores"] * found["wall"])
        how = (
            f"{found['cases']} cases with {' '.join(found['options'])} under Python "
            f"{found['python']}: {found['wall']:.0f} s on {found['cores']} cores, "
            f"and {used:.0f} s of processor time, {share:.0%} of what was available."
        )
        lines: list[list[object]] = [
            [
                kind["kind"],
                str(kind["processes"]),
                f"{kind['seconds']:.1f} s",
                f"{kind['median_ms']} ms",
            ]
            for kind in kinds
        ]
        return [paragraph(how), table(["Kind", "Processes", "Used", "Median"], lines)]


def steps(by_strategy: dict[str, dict[str, float]]) -> nodes.container:
    """Return the steps of a message by strategy, and their sums."""
    names = list(next(iter(by_strategy.values())))
    lines: list[list[object]] = [
        [name, *(f"{taken[name]:.0f} us" for taken in by_strategy.values())]
        for name in names
    ]
    lines.append(
        ["total", *(f"{sum(one.values()):.0f} us" for one in by_strategy.values())]
    )
    return table(["Step", *by_strategy], lines)


def sides(by_strategy: dict[str, dict[str, dict[str, float]]]) -> nodes.container:
    """Return the processor time of each process for a message, and the sums."""
    lines: list[list[object]] = []
    for strategy, used in by_strategy.items():
        total = {where: sum(of[where] for of in used.values()) for where in WHERE}
        for side, of in {**used, "total": total}.items():
            taken = (*(of[where] for where in WHERE), sum(of.values()))
            lines.append([strategy, side, *(f"{us:.0f} us" for us in taken)])
    return table(["Strategy", "Process", "Python", "Kernel", "Both"], lines)


def starts(by_import: dict[str, float]) -> nodes.container:
    """Return how long a process takes by what it imports."""
    lines = [[what, f"{taken:.0f} ms"] for what, taken in by_import.items()]
    return table(["A process that imports", "Time from start to end"], lines)
