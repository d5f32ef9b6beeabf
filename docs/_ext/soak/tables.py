"""Renders records as sentences and tables."""

from __future__ import annotations

from docutils import nodes
from elements import download, missing, paragraph, table

from soak.records import EXPECTED, Record, Records

VICTIMS = ("owner", "peer", "manager")
ENDINGS = (
    "ended before the first line",
    "cut short, without one",
    "cut short, with a summary",
    "had reached its end",
)
"""How far a killed run had come, by what its report has."""

RUN = [
    "Run",
    "Python",
    "Order",
    "Status",
    "Verdicts",
    "Cases that are not a plain pass",
    "Seconds",
    "Idle",
]
"""The columns for one run of the suite."""


def overview(records: Records) -> list[nodes.Node]:
    """Return a row for each committed run, whose name leads to its data."""
    found = {name: records.read(name) for names in EXPECTED.values() for name in names}
    rows = [
        [
            download(f"reports/soak/{name}.json", name),
            "✓ held" if record["held"] else "✗ did not hold",
            record["sentence"],
            f"{record['seconds'] / 60:.0f}",
            record["started"].partition("T")[0],
        ]
        for name, record in found.items()
        if record
    ]
    head = ["Run", "Outcome", "What it found", "Minutes", "Date"]
    return [table(head, rows, "soak-runs")]


def rounds(records: Records) -> list[nodes.Node]:
    """Return what is known of the rounds, for each strategy."""
    return of_all(records, "rounds")


def kills(records: Records) -> list[nodes.Node]:
    """Return the kills by victim and outcome."""
    found = of_all(records, "kills")
    record = records.read("kills")
    if record is None or "kills" not in record:
        return found
    head = ["Victim", "Kills", "Survivors saw no error", "Some saw a typed error"]
    rows = []
    for victim in VICTIMS:
        total = record["kills"].get(victim, 0)
        troubled = record["with_errors"].get(victim, 0)
        rows.append([victim, total, total - troubled, troubled])
    found.append(table(head, rows))
    if record["errors"]:
        named = ", ".join(f"{count} {name}" for name, count in record["errors"].items())
        found.append(paragraph(f"The errors: {named}."))
    episodes = ", ".join(f"{n} under {key}" for key, n in record["episodes"].items())
    found.append(paragraph(f"Episodes: {episodes}."))
    return found


def killed_runs(records: Records) -> list[nodes.Node]:
    """Return the runs that were ended, by how that was done and how far they came."""
    found = of_all(records, "killed-runs")
    record = records.read("killed-runs")
    if record is None or "counts" not in record:
        return found
    counts = record["counts"]
    ways = sorted(key for key in counts if key.startswith("SIG"))
    rows = [[key, counts[key]] for key in (*ways, *ENDINGS) if key in counts]
    return [*found, table(["How it ended, or what its report says", "Runs"], rows)]


def histories(records: Records) -> list[nodes.Node]:
    """Return how many random histories were taken, by what they are made of."""
    found = of_all(records, "histories")
    record = records.read("histories")
    if record is None or "histories" not in record:
        return found
    counts = record["histories"].items()
    rows = [[name.replace("_", " "), f"{count:,}"] for name, count in counts]
    return [*found, table(["Histories", "Taken"], rows)]


def hostile(records: Records) -> list[nodes.Node]:
    """Return what was taken away how often, and what could not be done."""
    found = of_all(records, "hostile")
    record = records.read("hostile")
    if record is None or "hardships" not in record:
        return found
    rows = [[name, count] for name, count in record["hardships"].items()]
    found.append(table(["What was done", "Times"], rows))
    named = ", ".join(f"{count} {name}" for name, count in record["errors"].items())
    found.append(paragraph(f"Errors meanwhile: {named or 'none'}."))
    found += [
        paragraph(f"Not done, {name}: {why}.")
        for name, why in record["not_done"].items()
    ]
    return found


def mixed(records: Records) -> list[nodes.Node]:
    """Return what took turns beside the processes that were watched."""
    found = of_all(records, "mixed")
    record = records.read("mixed")
    if record is None or "turns" not in record:
        return found
    rows: list[list[object]] = []
    for script in sorted({turn["script"] for turn in record["turns"]}):
        turns = [turn for turn in record["turns"] if turn["script"] == script]
        held = sum(turn["held"] for turn in turns)
        seconds = round(sum(turn["seconds"] for turn in turns))
        rows.append([f"{script}.py", len(turns), held, seconds])
    return [*found, table(["Script", "Turns", "Held", "Seconds"], rows)]


def runs(kind: str, records: Records) -> list[nodes.Node]:
    """Return the runs of the suite of a kind, each with its circumstances."""
    found = []
    for name, record in records.of(kind).items():
        found += summary(name, record)
        if record is None or not record.get("runs"):
            continue
        rows = [row_of(run, number) for number, run in enumerate(record["runs"], 1)]
        found.append(table(RUN, rows))
    return found


def row_of(run: Record, number: int) -> list[object]:
    """Return the row of one run of the suite."""
    return [
        number,
        run.get("python", ""),
        "as written" if run.get("seed") is None else f"random, seed {run['seed']}",
        run["status"],
        in_words(run["verdicts"]),
        others(run),
        run["seconds"],
        f"{run['idle']:.0%}" if "idle" in run else "",
    ]


def in_words(counts: dict[str, int]) -> str:
    """Return counts by name."""
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def others(run: Record) -> str:
    """Return which cases of a run were no plain pass."""
    return ", ".join(case["id"] for case in run["others"]) or "none"


def of_all(records: Records, kind: str) -> list[nodes.Node]:
    """Return the summaries of all records of a kind."""
    found: list[nodes.Node] = []
    for name, record in records.of(kind).items():
        found += summary(name, record)
    return found


def summary(name: str, record: Record | None) -> list[nodes.Node]:
    """Return when and how a run was made and what came of it, or that it was not."""
    if record is None:
        return [missing(f"{name}: not run yet; no record is committed.")]
    verdict = (paragraph if record["held"] else missing)(record["sentence"])
    commit = f" (commit {record['commit']})" if record.get("commit") else ""
    facts = (
        f"Version {record['version']}{commit}, Python {record['python']}, "
        f"{record['kernel']}, {record['cpus']} processors; "
        f"{record['started'].partition('T')[0]}, {record['seconds']:g} seconds: "
    )
    command = nodes.literal("", record["command"])
    how = nodes.paragraph("", "", nodes.Text(facts), command, classes=["soak-how"])
    return [verdict, how]
