"""Copies a built site into the folder of its version, next to those of other versions.

The published folder has a subfolder for each release, which is never changed again, and
``dev`` for the main branch. Its first page redirects to the newest release, or to
``dev`` if there is no release, and what is not there is answered by the page that this
version has for it. ``versions.json`` has the versions that the pages list.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from pathlib import Path

DEVELOPMENT = "dev"
RELEASE = re.compile(r"\d+\.\d+\.\d+")

FIRST_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>shared-tensor-spec</title>
<meta http-equiv="refresh" content="0; url={newest}/">
<p><a href="{newest}/">shared-tensor-spec {newest}</a></p>
</html>
"""


class Refused(Exception):
    """The site cannot be published; the message is one sentence."""


def publish(built: Path, published: Path, name: str) -> None:
    """Copy the site in `built` into the folder `name` of `published`.

    Raises:
        Refused: there is no site, the name is not a version, or it is the version of a
            release that is already published.
    """
    if name != DEVELOPMENT and not RELEASE.fullmatch(name):
        raise Refused(f"{name!r} is not a version: give one like 1.2.0, or dev")
    if not (built / "index.html").is_file():
        raise Refused(f"there is no site in {built}: build it with Sphinx")
    folder = published / name
    if folder.exists() and name != DEVELOPMENT:
        raise Refused(f"{name} is already published: a release is never changed")
    shutil.rmtree(folder, ignore_errors=True)
    unwanted = shutil.ignore_patterns(".doctrees", ".buildinfo")
    shutil.copytree(built, folder, ignore=unwanted)
    names = versions(published)
    listed = json.dumps(names, indent=1) + "\n"
    (published / "versions.json").write_text(listed, encoding="utf-8")
    first = FIRST_PAGE.format(newest=names[0])
    (published / "index.html").write_text(first, encoding="utf-8")
    for file in (published / names[0]).glob("404.html"):  # a release may have none
        shutil.copy(file, published)  # GitHub Pages shows it in place of any page
    # GitHub Pages leaves out folders that begin with an underscore without it.
    (published / ".nojekyll").touch()


def versions(published: Path) -> list[str]:
    """Return the published versions: the newest release first, dev last."""
    names = {file.parent.name for file in published.glob("*/index.html")}
    releases = sorted(filter(RELEASE.fullmatch, names), key=numbers, reverse=True)
    return [*releases, *sorted(names & {DEVELOPMENT})]


def numbers(release: str) -> tuple[int, ...]:
    """Return the numbers of a release, as a sort key."""
    return tuple(map(int, release.split(".")))


def main() -> int:
    """Publish the site; return 1 if that is refused."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("built", type=Path, help="the folder that Sphinx wrote")
    parser.add_argument("published", type=Path, help="the folder that is served")
    parser.add_argument("name", help="the version: a release like 1.2.0, or dev")
    given = parser.parse_args()
    try:
        publish(given.built, given.published, given.name)
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
