"""Checks whether a tag can be released: whether all files have its version.

The package, the specification, the citation and the changelog each name the version. A
release in which they differ could not be cited or compared.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def named_versions(root: Path) -> dict[str, str]:
    """Return the version that each file names, by its path from `root`."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    clauses = "conformance/sharedtensor_conformance/clauses.py"
    return {
        "pyproject.toml": project["project"]["version"],
        clauses: first(r'^SPEC_VERSION = "(.+)"', root / clauses),
        "CITATION.cff": first(r"^version: (.+)$", root / "CITATION.cff"),
        "CHANGELOG.md": first(r"^## (\S+)", root / "CHANGELOG.md"),
    }


def first(pattern: str, file: Path) -> str:
    """Return the group of the first match of `pattern` in `file`, or ""."""
    found = re.search(pattern, file.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else ""


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """Return the reasons why `tag` cannot be released, one sentence for each."""
    version = tag.removeprefix("v")
    found = [
        f"{file} names the version {named!r}, but the tag is {tag}: make them equal"
        for file, named in named_versions(root).items()
        if named != version
    ]
    if not re.fullmatch(r"v\d+\.\d+\.\d+", tag):
        found.append(f"the tag {tag!r} is not that of a release: give one like v1.2.0")
    if first(r"^## \S+ (.*)$", root / "CHANGELOG.md") == "(unreleased)":
        found.append("CHANGELOG.md says (unreleased): give the date instead")
    return found


def main() -> int:
    """Print the problems of the given tag; return 1 if there are any."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="Exit status: 0 if the tag can be released, 1 if not, 2 for a usage "
        "error.",
    )
    parser.add_argument("tag", help="for example v1.2.0")
    found = problems(parser.parse_args().tag)
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
