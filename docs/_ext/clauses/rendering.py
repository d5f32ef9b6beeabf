"""Writes parts of pages by templates, and fills in their places when all is known.

What a page shows beside its own text is data: evidence, reports, records. How it looks
is said by the templates in the folders ``templates``. A directive leaves a `Place` with
the name of its template. When all pages have been read, the template gets all clauses,
what backs them, and the addresses of the other pages. Where it needs more, `PREPARED`
has the function that adds it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import zip_longest
from pathlib import Path
from statistics import mean, median
from typing import Any

from docutils import nodes
from jinja2 import (
    Environment,
    FileSystemLoader,
    StrictUndefined,
    TemplateRuntimeError,
    select_autoescape,
)
from markupsafe import Markup
from sharedtensor_conformance.report.known import in_number
from sharedtensor_conformance.report.records import ReportError, read_report
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.highlighting import PygmentsBridge
from sphinx.transforms.post_transforms import SphinxPostTransform

from clauses import outcomes, settings
from clauses.domain import NAME
from clauses.links import Links

COUNTING = (
    *(outcomes.counted, outcomes.counted_in, outcomes.outcome_in),
    *(outcomes.simulated, outcomes.to_name, outcomes.words_in, in_number),
    *(settings.broken_by_setting, settings.broken_with, settings.holds_by_setting),
    *(settings.setting_marks, settings.varies),
)
"""What counts clauses, in every template by the same functions."""

EXTENSIONS = Path(__file__).parents[1]

FIGURE = re.compile(r"[\d,]+(\.\d+)?( ?(us|ms|s|%))?")
NOTHING = ("", "-")

Content = dict[str, Any]

PREPARED: dict[str, Callable[[Content], Mapping[str, Any]]] = {}
"""What adds to the content of a template, from the rest of its content."""

WRONG = (TemplateRuntimeError, ReportError, OSError, LookupError, AttributeError)
WRONG = (*WRONG, ValueError, TypeError)
"""What is raised where a file is no record that a template can show."""


class Place(nodes.General, nodes.Element):
    """The place of what `template` says; it gets `given` beside what all get."""


def place(template: str, **given: object) -> Place:
    """Return the place of a template's text."""
    return Place(template=template, given=given)


class FillPlaces(SphinxPostTransform):
    """Replaces each `Place` by what its template says."""

    default_priority = 5

    def run(self, **kwargs: object) -> None:
        """Render the places of a page."""
        for place in list(self.document.findall(Place)):
            place.replace_self(self.filled(place["template"], place["given"]))

    def filled(self, template: str, given: Mapping[str, Any]) -> nodes.raw:
        """Return what a template says.

        Raises:
            ExtensionError: a file is no record that the template can show.
        """
        if "files" not in given:
            return self.shown(template, **given)
        try:
            records = {Path(file).stem: self.read(file) for file in given["files"]}
            first = next(iter(records.values()))
            return self.shown(template, records=records, record=first, **given)
        except WRONG as error:
            files = ", ".join(given["files"])
            said = f"{files}: no record that {template}.html shows: {error}"
            raise ExtensionError(said) from error

    def shown(self, template: str, **given: Any) -> nodes.raw:
        """Return what a template makes of `given`, as a part of the page."""
        text = shown_on(self.app, self.env.docname, template, **given)
        return nodes.raw("", text, format="html")

    def read(self, file: str) -> Any:
        """Return what a JSON file below ``docs`` holds, or the report of a run."""
        path = Path(self.env.srcdir, file)
        if path.suffix == ".jsonl":
            return read_report(path)
        return json.loads(path.read_text(encoding="utf-8"))


@cache
def _templates() -> Environment:
    made = Environment(
        extensions=["jinja2.ext.do"],
        loader=FileSystemLoader(sorted(EXTENSIONS.glob("*/templates"))),
        autoescape=select_autoescape(["html", "xml"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    functions = (mean, median, number_columns, zip, *COUNTING)
    made.globals |= {function.__name__: function for function in functions}
    made.filters |= {"with_code": with_code, "highlighted": highlighted}
    return made


def shown_on(app: Sphinx, page: str, template: str, **given: Any) -> str:
    """Return what a template makes, on a page, of what all get and of `given`."""
    domain = app.env.domains[NAME]
    content: Content = {
        "env": app.env,
        "backing": domain.backing,
        "clauses": domain.clauses(),
        "chapters": domain.chapters(),
        "links": Links(app, page),
        **given,
    }
    prepare = PREPARED.get(template, lambda content: {})
    return written(f"{template}.html", **{**content, **prepare(content)})


def written(template: str, **content: Any) -> str:
    """Return the text that a template makes of `content`."""
    return _templates().get_template(template).render(content)


def with_code(text: str) -> Markup:
    """Return a sentence in which what stands between backticks is code."""
    code = Markup('<code class="docutils literal">{}</code>')
    parts = enumerate(text.replace("``", "`").split("`"))
    return Markup("").join(code.format(one) if n % 2 else one for n, one in parts)


def highlighted(text: str, language: str = "text") -> Markup:
    """Return a block of code, as Sphinx writes one."""
    block = PygmentsBridge("html").highlight_block(text, language)
    return Markup(f'<div class="highlight-{language} notranslate">{block}</div>')


def number_columns(width: int, rows: Iterable[Iterable[object]]) -> list[bool]:
    """Return of each column of a table whether it shows numbers."""
    found = [_are_numbers(column) for column in zip_longest(*rows, fillvalue="")]
    return found or [False] * width


def _are_numbers(column: Iterable[object]) -> bool:
    shown = {str(cell) for cell in column if cell not in NOTHING}
    return bool(shown) and all(map(FIGURE.fullmatch, shown))


def setup(app: Sphinx) -> None:
    """Register the places and what fills them."""
    app.add_node(Place)
    app.add_post_transform(FillPlaces)
