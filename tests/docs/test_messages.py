"""The page of error messages: each has a remedy and a clause, and is found."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import tiny_project
from sharedtensor_conformance.clauses import load_clauses

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "guides" / "messages.toml"
EXPECTATIONS = "conformance/sharedtensor_conformance/expectations"
THREAD = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+")

REMEDY = '[remedies.wait]\ndo = "Wait ({clause}`TINY-2`)."\nprice = "time."\n'
MESSAGE = {
    "title": '"it is lost"',
    "texts": '["MailError: it is lost in process ..."]',
    "means": '"A message was lost."',
    "remedies": '["wait"]',
    "clauses": '["TINY-1"]',
    "programs": '["torch/lost"]',
    "threads": '["https://github.com/acme/tensors/issues/7"]',
}
PAGES = {
    "docs/conf.py": tiny_project.FILES["docs/conf.py"] + 'extensions += ["messages"]\n',
    "docs/tables.md": "# Errors\n\n```{messages} messages.toml\n```\n",
    f"{EXPECTATIONS}/torch.toml": (
        'judged = "2.13.0"\n\n[[expect]]\nclause = "TINY-1"\noutcomes = ["fail"]\n'
        'version = ">=2.2"\ncause = "It drops it."\nreproducer = "torch/lost.py"\n'
        "date = 2026-01-01\n"
    ),
    f"{EXPECTATIONS}/causes/torch/lost.py": '"""A tensor is lost."""\n',
}


def entry(**changed):
    """Return a file with one message; a key that is changed to "" is left out."""
    keys = MESSAGE | changed
    lines = [f"{key} = {value}" for key, value in keys.items() if value]
    head = '[[group]]\ntitle = "Mail"\n\n[[group.message]]'
    return "\n".join([REMEDY, head, *lines]) + "\n"


@pytest.fixture(scope="module")
def messages(extension):
    """The module of the extension."""
    return extension("messages")


@pytest.fixture(scope="module")
def known(messages):
    """The messages of the site."""
    groups = messages.load_messages(FILE)
    return [message for group in groups for message in group.messages]


def test_each_message_names_clauses_that_exist_and_a_remedy_with_its_price(known):
    assert len(known) >= 40
    clauses = load_clauses()
    for message in known:
        assert set(message.clauses) <= set(clauses), message.title
        assert message.remedies, message.title
        assert all(one.do and one.price for one in message.remedies), message.title


def test_each_message_is_there_once(known):
    titles = sorted(message.title.lower() for message in known)
    assert all(one != other for one, other in pairwise(titles))


def test_each_program_is_recorded_and_each_thread_has_a_number(messages, known):
    records = messages.Records(ROOT)
    shown = [one for message in known for one in records.of(message)]
    assert len(shown) >= 40
    assert all(one.title and one.releases for one in shown)
    threads = [thread for message in known for thread in message.threads]
    assert [one for one in threads if not THREAD.fullmatch(one)] == []


@pytest.fixture(scope="module")
def site(build, tmp_path_factory):
    """The tiny site with one message."""
    root = tmp_path_factory.mktemp("messages")
    return build(root, PAGES | {"docs/messages.toml": entry()})


def test_message_is_a_section_with_all_its_facts(site):
    assert site.warnings == ""
    page = site.page("tables.html")
    part = page[page.index('<section id="it-is-lost">') :]
    shown = " ".join(re.sub(r"<[^>]+>", "", part).split())
    for fact in (
        "MailError: it is lost in process ...",
        "A message was lost.",
        "Wait (TINY-2). Price: time.",
        "Clauses: TINY-1.",
        "PyTorch 2.2 to 2.13.0: A tensor is lost",
        "tensors#7",
    ):
        assert fact in shown
    assert f'href="source/{EXPECTATIONS}/causes/torch/lost.py.html"' in part
    assert 'href="TINY-1.html"' in part


def test_search_has_each_text_with_the_place_of_its_section(site):
    index = site.page("searchindex.js")
    data = json.loads(index[index.index("(") + 1 : index.rindex(")")])
    for text in ("it is lost", "mailerror: it is lost in process ..."):
        [[_, anchor, is_main]] = data["indexentries"][text]
        assert (anchor, is_main) == ("it-is-lost", True)


def test_clause_that_does_not_exist_is_a_warning(site_of):
    wrong = entry(clauses='["TINY-9"]')
    found = site_of(PAGES | {"docs/messages.toml": wrong})
    assert "TINY-9" in found.warnings


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"remedies": "[]"}, "'it is lost' has no remedy"),
        (
            {"remedies": '["hope"]'},
            "'it is lost': there is no remedy 'hope'",
        ),
        ({"clauses": ""}, "'it is lost' needs either clauses or outside"),
        ({"outside": '"So."'}, "'it is lost' needs either clauses or outside"),
        ({"means": ""}, "'it is lost' lacks 'means'"),
        ({"cause": '"So."'}, "'it is lost' has an unknown key: cause"),
        ({"title": ""}, "'a message without a title' lacks 'title'"),
        ({"title": "lost"}, "cannot be read"),
    ],
)
def test_malformed_message_is_refused_in_one_sentence(
    messages, tmp_path, changed, said
):
    file = tmp_path / "messages.toml"
    file.write_text(entry(**changed))
    with pytest.raises(messages.MessagesError) as error:
        messages.load_messages(file)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_remedy_without_a_price_is_refused(messages, tmp_path):
    file = tmp_path / "messages.toml"
    file.write_text(entry().replace('price = "time."\n', ""))
    with pytest.raises(messages.MessagesError, match=r"remedies\.wait lacks 'price'"):
        messages.load_messages(file)


def test_program_that_no_expectation_names_stops_the_build(site_of):
    from sphinx.errors import ExtensionError

    wrong = PAGES | {"docs/messages.toml": entry(programs='["torch/kept"]')}
    with pytest.raises(ExtensionError, match=r"no expectation names .* torch/kept\.py"):
        site_of(wrong)


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ([">=2.2"], "2.2 to 2.13.0"),
        ([">=2.6", ">=2.2", ">=2.13"], "2.2 to 2.13.0"),
        ([">=2.13"], "2.13.0"),
        ([""], "2.13.0"),
        ([">=2.2,<2.10"], "2.2 and later, before 2.10"),
        ([">=2.2,<2.3", ">=2.6,<2.10"], "2.2 and later, before 2.10"),
        ([">=2.2,<2.3", ">=2.6"], "2.2 to 2.13.0"),
    ],
)
def test_releases_are_the_widest_range(messages, ranges, said):
    from datetime import date

    from packaging.specifiers import SpecifierSet
    from sharedtensor_conformance.report.expectations import Expectation

    about = [
        Expectation(1, frozenset(), "", date(2026, 1, 1), versions=SpecifierSet(one))
        for one in ranges
    ]
    assert messages.releases(about, "2.13.0") == said
