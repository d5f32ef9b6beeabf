"""Writes what cases take, for shards and for the progress of a run.

    python ci/durations.py docs/reports/torch.jsonl docs/reports/torch-faults.jsonl

Reports of the same implementation make one file of the package, by test and by
configuration, in seconds. To be run again when tests were added, or when they take much
longer or shorter than before: what is not known is estimated.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from importlib.resources import files
from pathlib import Path

from sharedtensor_conformance.plugin.durations import table_of
from sharedtensor_conformance.report.records import Case, read_report


def main() -> None:
    """Write a file for each implementation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reports", metavar="REPORT", nargs="+")
    cases: defaultdict[str, list[Case]] = defaultdict(list)
    for path in parser.parse_args().reports:
        report = read_report(path)
        cases[report.run.implementation.name].extend(report.cases)
    folder = Path(str(files("sharedtensor_conformance.durations")))
    for name, found in cases.items():
        rows = (
            f" {json.dumps(test)}: {json.dumps(row)}"
            for test, row in table_of(found).items()
        )
        folder.joinpath(f"{name}.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
