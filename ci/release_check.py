"""Says whether a tag can be released: whether everything has its version.

The package, the specification, the citation and the changelog each name the version;
a release in which they differ could not be cited or compared.
"""

from __future__ import annotations

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
    """Return what the first match of `pattern` in `file` has found; else nothing."""
    found = re.search(pattern, file.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else ""


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """Return why `tag` cannot be released, a sentence each."""
    version = tag.removeprefix("v")
    found = [
        f"{file} names the version {named!r}, and the tag is {tag}: make them equal"
        for file, named in named_versions(root).items()
        if named != version
    ]
    if not re.fullmatch(r"v\d+\.\d+\.\d+", tag):
        found.append(f"the tag {tag!r} is none of a release: give one such as v1.2.0")
    if first(r"^## \S+ (.*)$", root / "CHANGELOG.md") == "(unreleased)":
        found.append("CHANGELOG.md says that it is unreleased: give the date instead")
    return found


def main() -> int:
    """Print what is wrong with the tag that is given; 1 where something is."""
    if len(sys.argv) != 2:
        print("give one tag, such as v1.2.0", file=sys.stderr)
        return 2
    found = problems(sys.argv[1])
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
