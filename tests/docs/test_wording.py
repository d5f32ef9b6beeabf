"""On the site a clause links its terms, and the profiles stand in one table."""

import re

import pytest
import tiny_project

TERMS = """\
# Terms

```{glossary}
storage
  Memory.

tensor
  A window on it.
```
"""

CHAPTER = tiny_project.CHAPTER.replace(
    "The normative **words**.",
    "Two tensors over one storage, `tensor` and another **tensor**.",
)

PROFILES = """\
# Profiles

```{profiles}
core
  Tensors are `shared`.

views needs core
  There are views.
```
"""

INDEX = "# Index\n\n```{toctree}\ntiny\npromises\ntables\nterms\nprofiles\n```\n"
PAGES = {
    "docs/index.md": INDEX,
    "docs/terms.md": "```{include} ../spec/terms.md\n```\n",
    "docs/profiles.md": PROFILES,
    "spec/terms.md": TERMS,
    "spec/tiny.md": CHAPTER,
}


@pytest.fixture(scope="module")
def worded(build, tmp_path_factory):
    return build(tmp_path_factory.mktemp("worded"), PAGES)


def test_term_is_linked_where_a_clause_uses_it_first(worded):
    assert worded.warnings == ""
    pattern = r'href="([^"]*term-[^"]*)"[^>]*>(.*?)</a>'
    found = re.findall(pattern, worded.page("tiny.html"))
    shown = [(target, re.sub("<[^>]*>", "", text)) for target, text in found]
    assert shown == [
        ("terms.html#term-tensor", "tensors"),
        ("terms.html#term-storage", "storage"),
    ]


def test_profiles_stand_in_a_table_with_their_clauses(worded):
    page = worded.page("profiles.html")
    core, views = re.findall(r"<tr.*?</tr>", page.partition("<tbody>")[2], re.DOTALL)
    for part in ("shared", "TINY-1", "TINY-2", "encode", "none"):
        assert part in core
    assert "TINY" not in views
    assert "reinterpret" in views
    assert "core" in views


def test_malformed_profile_stops_the_build(site_of):
    wrong = PAGES | {"docs/profiles.md": PROFILES.replace("  There are views.\n", "")}
    assert "the profile 'views needs core' needs a claim" in site_of(wrong).warnings
