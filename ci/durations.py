"""Records the durations of cases from reports, for shards and the progress line.

    python ci/durations.py docs/reports/torch.jsonl docs/reports/torch-faults.jsonl

All reports of an implementation are combined into one file of the package, with seconds
by test and configuration. Run this again after tests were added, or if their durations
have changed much. Unknown durations are estimated.
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
    text = "reports of any implementations (JSON Lines)"
    parser.add_argument("reports", metavar="REPORT", nargs="+", help=text)
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
