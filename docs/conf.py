"""Configuration of the site: ``python -m sphinx -W -n -b html docs docs/_build/html``.

The site is built from what is in the repository and needs no network.
"""

import gc
import html
import re
import sys
import textwrap
from pathlib import Path

from docutils import nodes
from sharedtensor_conformance.clauses import SPEC_VERSION

gc.set_threshold(200_000)  # millions of nodes live as long as the build

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "shared-tensor-spec"
author = "the authors of shared-tensor-spec"
copyright = "2026, the authors of shared-tensor-spec"
release = version = SPEC_VERSION

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "clauses",
    "records",
    "messages",
    "exports",
]
exclude_patterns = ["_build", "_ext", "_templates", "reports"]

nitpicky = True
nitpick_ignore_regex = [
    # Types of other projects: links to them would need inventories from the network.
    (r"py:.*", r"(collections|types|typing|multiprocessing|numpy|pathlib|os|np)\..*"),
    # Types that signatures name; they are not public and have no page of their own.
    (r"py:class", r"sharedtensor\.(tensors\.Hook|memory\.Memory|strategies\.Segment)"),
    (r"py:class", r"sharedtensor\.cuda\.state\.(DeviceState|Allocation)"),
]

# The order in which the chapters are read; spec/index.md lists them in the same one.
# fmt: off
clauses_chapters = [
    "API", "START", "SPAWN", "STRAT", "SHARE", "VIEW", "KIND", "MEM", "GRAD",
    "RESHARE", "CHAN", "THREAD", "LOAD", "LIFE", "FD", "FS", "MGR", "FAULT", "TRAIN",
    "CUDA", "FAIL", "ENV", "SEC", "HANDLE",
]
# fmt: on
clauses_implementations = [
    *("torch", "torch-cuda", "paddle", "mindspore", "tensordict"),
    *("stdlib", "sharedarray", "shared-ndarray2"),
    *("torch-patched", "reference"),
]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
myst_fence_as_directive = ["mermaid"]

default_role = "literal"  # docstrings write code in single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True

copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
copybutton_line_continuation_character = "\\"

PALETTE = "../conformance/sharedtensor_conformance/report/templates/palette.css"
"""The colours of verdicts, which the page of a report has as well."""

html_theme = "furo"
html_title = f"shared-tensor-spec {release}"
html_static_path = ["_static", PALETTE]
html_extra_path = ["404.html"]
html_css_files = ["palette.css", "clauses.css", "field.css", "messages.css"]
html_js_files = [(name, {"defer": "defer"}) for name in ("matrix.js", "messages.js")]
html_favicon = "_static/favicon.svg"
html_copy_source = False
html_show_sourcelink = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#0b5c8a",
        "color-brand-content": "#0b5c8a",
    },
    "dark_css_variables": {
        "color-brand-primary": "#7cc4ee",
        "color-brand-content": "#7cc4ee",
    },
}


if tags.has("versioned"):  # noqa: F821  (Sphinx puts it here)
    # The site is published beside those of other versions, and lists them.
    templates_path = ["_templates"]
    html_js_files.append(("versions.js", {"defer": "defer"}))
    html_sidebars = {
        "**": [
            "sidebar/brand.html",
            "sidebar/versions.html",
            "sidebar/search.html",
            "sidebar/scroll-start.html",
            "sidebar/navigation.html",
            "sidebar/scroll-end.html",
        ]
    }


MENDED = {
    'class="caption" role="heading"': 'class="caption" role="heading" aria-level="2"',
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
}
"""What Sphinx and the theme write, and what those need who use keys or hear a page."""


SCROLLED = re.compile(
    r'(<div class="highlight-(?!console|text)[^"]*"><div class="highlight"><pre)>'
)
"""A block of code whose lines are not wrapped: it scrolls where it is too wide."""


def mend(app, pagename, templatename, context, doctree):
    """Give headings of lists their level, and let keys scroll wide tables and code."""
    for part in ("furo_navigation_tree", "body"):
        for written, instead in MENDED.items():
            if part in context:
                context[part] = context[part].replace(written, instead)
    if "body" in context:
        context["body"] = SCROLLED.sub(r'\1 tabindex="0">', context["body"])


DESCRIPTION = (
    "What torch.multiprocessing promises about tensors shared between processes, as "
    "testable clauses, and which libraries keep them."
)
META = """\
<meta name="description" content="{0}">
<meta property="og:site_name" content="{1}">
<meta property="og:title" content="{2}">
<meta property="og:description" content="{0}">
<meta property="og:type" content="article">
"""


def describe(app, pagename, templatename, context, doctree):
    """Say what a page is about, as search engines and chats show it with a link."""
    first = doctree and doctree.next_node(nodes.paragraph)
    said = context.get("description") or (first.astext() if first else DESCRIPTION)
    said = textwrap.shorten(said, 200, placeholder=" ...")
    title = re.sub("<[^>]+>", "", context.get("title", ""))
    shown = said, project, html.unescape(title)
    tags = META.format(*map(html.escape, shown))
    context["metatags"] = context.get("metatags", "") + tags


def setup(app):
    """Register what is added to each page."""
    app.connect("html-page-context", mend, priority=900)  # after the theme
    app.connect("html-page-context", describe)
