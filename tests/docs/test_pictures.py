"""The pictures: drawn when the site is built, from what they are about."""

import re

import tiny_project
from sharedtensor_conformance.chapters.state_machines import MACHINES, MESSAGE
from tiny_report import text_of

DIAGRAM = """\
# Diagram

```mermaid
sequenceDiagram
    participant A as maker
    participant B as peer

    A->>B: a handle of the whole allocation, at an offset
    opt it is not open
        B->>B: opens it
    end
    alt it was new
        B-->>A: thanks
    else it was not
        B->>A: nothing
    end
```
"""
CONF = tiny_project.FILES["docs/conf.py"] + 'myst_fence_as_directive = ["mermaid"]\n'


def drawn(site_of, text):
    """Return the site with one more page."""
    index = "# Index\n\n```{toctree}\ntiny\npromises\ntables\ndrawn\n```\n"
    return site_of(
        {"docs/conf.py": CONF, "docs/index.md": index, "docs/drawn.md": text}
    )


def pictures_of(site):
    return re.findall(r"<svg.*?</svg>", site.page("drawn.html"), re.DOTALL)


def arrows_of(picture):
    """Return the arrows between columns: where they begin and end, left to right."""
    found = re.findall(
        r'<line class="arrow([^"]*)" x1="([\d.]+)" x2="([\d.]+)"', picture
    )
    return [(dashed.strip(), float(end) > float(start)) for dashed, start, end in found]


def test_sequence_diagram_is_drawn_with_its_columns_arrows_and_blocks(site_of):
    site = drawn(site_of, DIAGRAM)
    assert site.warnings == ""
    (picture,) = pictures_of(site)
    assert text_of(picture) == (
        "maker peer a handle of the whole allocation, at an offset opt it is not open "
        "opens it alt it was new thanks else it was not nothing"
    )
    assert arrows_of(picture) == [("", True), ("dashed", False), ("", False)]
    assert picture.count('<rect class="block"') == 2
    assert picture.count('class="divider"') == 1
    assert "sequenceDiagram" not in text_of(site.page("drawn.html"))


def test_line_that_cannot_be_drawn_is_named(site_of):
    site = drawn(site_of, DIAGRAM.replace("    end", "    loop for ever", 1))
    said = "drawn.md:3: ERROR: the site cannot draw this line of Mermaid: loop for ever"
    assert said in site.warnings


def test_each_machine_is_drawn_from_its_transitions(site_of):
    clauses = {
        id for one in MACHINES for step in one.transitions for id in step.clauses
    }
    chapter = tiny_project.CHAPTER
    for id in sorted(clauses):
        chapter += (
            f"\n```{{clause}} {id}\n:title: T\n:level: MUST\n:profile: core\n"
            ":observes: values\n:no-code: N.\n\nX.\n\nWhy. Y.\n```\n"
        )
    text = "# Machines\n\n```{state-machines}\n```\n"
    index = "# Index\n\n```{toctree}\ntiny\npromises\ntables\ndrawn\n```\n"
    changed = {"docs/index.md": index, "docs/drawn.md": text, "spec/tiny.md": chapter}
    pictures = pictures_of(site_of(changed))
    assert len(pictures) == len(MACHINES)
    for machine, picture in zip(MACHINES, pictures, strict=True):
        moves = {(one.state, one.next) for one in machine.transitions}
        changing = [(state, after) for state, after in moves if state != after]
        assert len(arrows_of(picture)) == len(changing)
    words = text_of(pictures[MACHINES.index(MESSAGE)])
    assert words.startswith("new in flight uncertain received refused lost put refused")
    assert "sender dropped" not in words  # it changes nothing
