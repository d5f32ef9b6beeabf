"""A specification of two clauses, with code that cites them, to build a site from."""

import io
from dataclasses import dataclass
from pathlib import Path

EXTENSIONS = Path(__file__).parents[2] / "docs" / "_ext"

CHAPTER = """\
# TINY

Rests on {promise}`P01` and on {clause}`TINY-2`.

```{clause} TINY-1
:title: The first clause
:level: MUST
:profile: core
:observes: sharing
:promises: P01

Two tensors over one storage, `tensor` and **words**.

Why. The reasons.
```

```{clause} TINY-2
:title: The second clause
:level: SHOULD
:profile: core
:observes: values
:no-code: The kernel does it.

More words.

Why. More reasons, see {source}`reference/sharedtensor/memory.py`.
```
"""

FILES = {
    "docs/conf.py": (
        'extensions = ["myst_parser", "clauses"]\n'
        "nitpicky = True\n"
        'exclude_patterns = ["reports"]\n'
    ),
    "docs/index.md": "# Index\n\n```{toctree}\ntiny\npromises\ntables\n```\n",
    "docs/tiny.md": "```{include} ../spec/tiny.md\n```\n",
    "docs/promises.md": (
        "# Promises\n\n```{promise} P01\n:source: https://acme.org/docs\n\n"
        "It works.\n```\n\n```{promise} P02\n:source: https://acme.org/more\n"
        ":informative: Nothing can be seen of it.\n\nIt is nice.\n```\n"
    ),
    "docs/tables.md": (
        "# Tables\n\n```{clause-index}\n```\n\n```{clause-matrix}\n```\n\n"
        "```{report-list}\n```\n"
    ),
    "spec/tiny.md": CHAPTER,
    "conformance/sharedtensor_conformance/chapters/test_tiny.py": (
        '@clause("TINY-1", vary=())\n'
        "def test_receiver_sees_the_write(owner):\n"
        '    """The owner writes."""\n\n\n'
        '@clause("TINY-2", vary=())\n'
        "def test_receiver_reads_the_value(owner):\n"
        '    """The peer reads."""\n'
    ),
    "conformance/sharedtensor_conformance/mutants/chapters/tiny.py": (
        '@mutant("keeps_a_copy", "TINY-1", replaces="memory.Memory.move")\n'
        "def keeps_a_copy(move):\n"
        '    """Keeps a copy of each tensor."""\n\n\n'
        '@mutant("sends_nothing", "TINY-2", replaces="memory.send")\n'
        "def sends_nothing(send):\n"
        '    """Sends nothing."""\n'
    ),
    "reference/sharedtensor/memory.py": (
        '"""Memory."""\n\n\nclass Memory:\n    def move(self):\n'
        '        """Move into place. Clause TINY-1."""\n\n\n'
        "def send():\n"
        '    """Send it."""\n'
    ),
}


@dataclass(frozen=True)
class Site:
    """What a build left: its pages and its warnings."""

    folder: Path
    warnings: str

    def page(self, name: str) -> str:
        """Return the HTML of a page."""
        return (self.folder / name).read_text(encoding="utf-8")


def write_project(root: Path, changed: dict[str, str]) -> None:
    """Write the project with some of its files changed or added; touch no others."""
    for name, text in (FILES | changed).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def build(root: Path) -> Site:
    """Build the site of the project at `root`."""
    # Imported here, so that the module can be imported where Sphinx is missing.
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    warnings = io.StringIO()
    docs, folder = root / "docs", root / "html"
    with patch_docutils(docs), docutils_namespace():
        Sphinx(
            srcdir=docs,
            confdir=docs,
            outdir=folder,
            doctreedir=root / "doctrees",
            buildername="html",
            confoverrides={"html_theme": "basic"},
            status=None,
            warning=warnings,
        ).build()
    return Site(folder, warnings.getvalue())
