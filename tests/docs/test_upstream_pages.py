"""The reports to other projects: what a page and its Markdown have, and need."""

import html
import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest
import tiny_project
from sharedtensor_conformance.expectations.programs import code_hash
from sharedtensor_conformance.report.verdicts import Verdict
from tiny_report import case_of, write_report

FOLDER = "conformance/sharedtensor_conformance/expectations"
RECORD = "docs/reports/causes/torch.json"
LOST = '"""A tensor is ``lost``.\n\nOften.\n"""\n\nprint(sum(range(3)))\n'
SLOW = '"""A tensor is slow."""\n\nprint("slow")\n'
ENTRY = """\
[[expect]]
clause = "TINY-1"
outcomes = ["fail"]
cause = "The reducer drops it."
reproducer = "torch/{}.py"
link = "https://github.com/acme/tensors/issues/{}"
date = 2026-01-01
"""
CAUSES = """\
[promises.mail]
says = "What is `sent` arrives."
source = "https://acme.org/mail"

[causes.lost]
promises = ["P01", "mail"]
expected = "It arrives."
where = ["tensors/queue.py: Queue.put", "aten/Map.cpp: Map::Map"]
related = ["https://github.com/acme/tensors/pull/3"]

[causes.slow]
no-promise = "Nothing is said of speed."
where = ["tensors/queue.py: Queue.get"]

[device.keeps]
no-promise = "Nothing is said of devices."
"""
PADDLE_CAUSES = """\
[causes.lost]
no-promise = "Nothing is said of mail."
where = ["paddles/queue.py: Queue.put"]
"""
KEPT = '"""The memory is *kept*.\n\nFor ever.\n"""\n'
KEEPS = "torch/device/keeps.py"
COUNTS = "Nobody counts down."
ON_DEVICE = f"""\
[[expect]]
clause = "TINY-1"
outcomes = ["fail"]
cause = "{COUNTS}"
reproducer = "{KEEPS}"
date = 2026-01-01
"""
DEVICE_RECORD = "docs/reports/causes/torch-device.json"
NAMED = "tiny\npromises\ntables\nupstream/torch\nclauses\nfound/all\ndevice"
ENTRIES = "\n".join([ENTRY.format("lost", 1), ENTRY.format("slow", 2), ON_DEVICE])
INDEX = f"# Index\n\n```{{toctree}}\n{NAMED}\n```\n"


def record(**programs):
    """Return what was recorded of programs, as JSON."""
    found = {
        name: {"sha256": code_hash(text), "output": "said"}
        for name, text in programs.items()
    }
    machine = {"date": "2026-01-02", "version": "7.5", "python": "3.11.7"}
    lines = {"tensors/queue.py: Queue.put": 42}
    whole = {**machine, "kernel": "Linux 6.1", "lines": lines, "programs": found}
    return json.dumps(whole)


PAGES = {
    "docs/index.md": INDEX,
    "docs/upstream/torch.md": (
        "# Reports\n\n```{deviation-list} torch\n```\n\n"
        "## None\n\n```{deviations-without-promise} torch\n```\n"
    ),
    "docs/clauses.md": "# Clauses\n\n```{deviation-clauses} torch\n```\n",
    "docs/conf.py": tiny_project.FILES["docs/conf.py"] + 'extensions += ["records"]\n',
    "docs/device.md": (
        "# Device\n\n```{record} device-deviations reports/causes/torch-device.json"
        "\n```\n"
    ),
    "docs/found/all.md": "# All\n\n```{findings}\n```\n",
    f"{FOLDER}/paddle.toml": ENTRY.format("lost", 4).replace("torch/", "paddle/"),
    f"{FOLDER}/causes/paddle.toml": PADDLE_CAUSES,
    f"{FOLDER}/causes/paddle/lost.py": LOST,
    RECORD.replace("torch", "paddle"): record(lost=LOST),
    f"{FOLDER}/torch.toml": ENTRIES,
    f"{FOLDER}/causes/{KEEPS}": KEPT,
    DEVICE_RECORD: record(keeps=KEPT),
    f"{FOLDER}/torch-patched.toml": ENTRY.format("slow", 2),
    f"{FOLDER}/causes/torch.toml": CAUSES,
    f"{FOLDER}/causes/torch/lost.py": LOST,
    f"{FOLDER}/causes/torch/slow.py": SLOW,
    RECORD: record(lost=LOST, slow=SLOW),
}


def write_reports(root):
    broken = case_of(Verdict.FAIL, cause="The reducer drops it.")
    write_report(root, "torch", broken, expectations="torch.toml")
    write_report(root, "torch-patched", case_of(Verdict.PASS))
    write_report(root, "paddle", case_of(Verdict.FAIL), expectations="paddle.toml")
    on_device = case_of(Verdict.FAIL, cause=COUNTS)
    options = {"options": ("--impl=torch-cuda", "--device=cuda"), "device": "cuda"}
    options["expectations"] = "torch.toml"
    write_report(root, "torch", on_device, file="gpu/torch.jsonl", **options)


@pytest.fixture(scope="module")
def upstream(build, tmp_path_factory):
    """The site with a report of one deviation, and one that is none."""
    root = tmp_path_factory.mktemp("upstream")
    write_reports(root)
    return build(root, PAGES)


@pytest.fixture
def upstream_of(site_of, tmp_path):
    """Build it with some of its files changed."""
    write_reports(tmp_path)
    return lambda changed: site_of(PAGES | changed)


def words(part):
    """Return the text of HTML, with single spaces."""
    text = re.sub(r"<[^>]+>", "", re.sub(r"</(d[dt]|p|td|th)>", " ", part))
    return html.unescape(" ".join(text.split()))


LOST_PAGE = "upstream/torch-lost.html"


def test_report_is_a_page_with_all_its_facts(upstream):
    assert upstream.warnings == ""
    part = upstream.page(LOST_PAGE)
    shown = words(part[: part.index("<details")])
    for fact in (
        "A tensor is lost",
        "The reducer drops it.",
        "print(sum(range(3)))",
        "It prints: said",
        "Expected It arrives.",
        "P01 It works. (source)",
        "What is sent arrives. (source)",
        "Queue.put in tensors/queue.py, line 42",
        "Map::Map in aten/Map.cpp",
        "PyTorch 7.5, Python 3.11.7, Linux 6.1; run on 2026-01-02",
        "Clauses TINY-1",
        "Threads tensors#1, related: tensors#3",
        "Repaired by all fixes together",
    ):
        assert fact in shown
    for link in (
        "https://acme.org/docs",
        "https://acme.org/mail",
        "../promises.html#P01",
        "../TINY-1.html",
        f"../source/{FOLDER}/causes/torch/lost.py.html",
        "torch.html",
        "https://github.com/acme/tensors/issues/1",
    ):
        assert f'href="{link}"' in part


def test_markdown_has_the_same_and_the_program_as_it_is(upstream):
    page = upstream.page(LOST_PAGE)
    block = re.search(r"<details.*?<pre>(.*?)\n?</pre>", page, re.DOTALL)[1]
    text = html.unescape(re.sub(r"<[^>]+>", "", block))
    assert text.startswith("# A tensor is `lost`\n\nThe reducer drops it.\n\n```python")
    for part in (
        f"```python\n{LOST}```\n\nIt prints:\n\n```text\nsaid\n```\n",
        "\nIt arrives. What the documentation says",
        "\n- It works. (https://acme.org/docs)\n",
        "\n- What is `sent` arrives. (https://acme.org/mail)\n",
        "\n- `Queue.put` in `tensors/queue.py`, line 42\n",
        "\n- PyTorch 7.5\n- Python 3.11.7\n- Linux 6.1\n- run on 2026-01-02\n",
        "\n- https://github.com/acme/tensors/issues/1\n",
        "\n- https://github.com/acme/tensors/pull/3 (related)\n",
        "\n- TINY-1: The first clause",
    ):
        assert part in text
    assert "{" not in text.replace(LOST, "")


def test_report_can_be_copied_without_prompts(upstream):
    assert "$ " not in upstream.page(LOST_PAGE)


def issue_of(page):
    """Return the title and the text with which the page opens an issue."""
    address = html.unescape(
        re.search(r'class="sd-[^"]*btn[^"]*" href="([^"]+)"', page)[1]
    )
    assert len(address) <= 8000
    assert address.startswith("https://github.com/pytorch/pytorch/issues/new?")
    given = parse_qs(urlsplit(address).query)
    return given["title"][0], given["body"][0]


def test_button_opens_an_issue_with_the_report(upstream):
    page = upstream.page(LOST_PAGE)
    title, text = issue_of(page)
    assert title == "A tensor is `lost`"
    assert text.startswith("The reducer drops it.\n\n```python\n")
    assert text.endswith("- TINY-1: The first clause")
    assert "too long" not in words(page)


def test_report_that_is_too_long_for_an_address_is_shortened_and_says_so(upstream_of):
    places = '", "'.join(f"tensors/queue.py: put_{n}" for n in range(300))
    causes = CAUSES.replace("tensors/queue.py: Queue.put", places)
    page = upstream_of({f"{FOLDER}/causes/torch.toml": causes}).page(LOST_PAGE)
    _, text = issue_of(page)
    assert "## Expected" in text
    assert "## Where" not in text
    assert text.endswith("*The rest did not fit into the address of this form.*")
    assert "The whole report is too long for an address" in words(page)


def test_page_of_a_clause_shows_the_program_with_what_it_printed(upstream):
    page = upstream.page("TINY-1.html")
    shown = words(page[page.index('id="TINY-1-torch"') :])
    assert "print(sum(range(3))) It prints: said The report to its project" in shown
    assert 'href="upstream/torch-lost.html"' in page


def test_deviation_without_a_promise_is_in_a_table_with_the_reason(upstream):
    page = upstream.page("upstream/torch.html")
    row = words(page[page.index('id="none"') :])
    assert "A tensor is slow TINY-1 Nothing is said of speed. tensors#2" in row
    assert not (upstream.folder / "upstream/torch-slow.html").exists()


def test_list_and_table_say_what_is_promised_reported_and_repaired(upstream):
    page = upstream.page("upstream/torch.html")
    rows = words(page)
    assert 'id="lost" href="torch-lost.html"' in page
    assert "A tensor is lost TINY-1 tensors#1, related: tensors#3 by all fixes" in rows
    table = upstream.page("clauses.html")
    assert (
        "TINY-1 A tensor is lost tensors#1, tensors#2, related: tensors#3 "
        "by all fixes together" in words(table)
    )
    assert 'href="upstream/torch-lost.html"' in table


def test_what_the_fixes_leave_is_not_repaired(upstream_of):
    left = {f"{FOLDER}/torch-patched.toml": ENTRY.format("lost", 1)}
    page = upstream_of(left).page(LOST_PAGE)
    assert "Repaired no" in words(page)


@pytest.mark.parametrize("more", [" (see TINY-2)", "; see TINY-2"])
def test_report_stands_alone_where_its_cause_refers_to_another_clause(
    upstream_of, more
):
    entry = ENTRY.format("lost", 1).replace("drops it.", f"drops it{more}.")
    page = upstream_of({f"{FOLDER}/torch.toml": entry}).page(LOST_PAGE)
    shown = words(page)
    assert shown.count("The reducer drops it.") == 2  # the page, and the Markdown
    assert "see TINY-2" not in shown


def test_deviation_of_another_release_is_no_report(upstream_of):
    entry = ENTRY.format("lost", 1).replace("link", 'version = "<7"\nlink')
    both = f"{entry}\n{ENTRY.format('slow', 2)}\n{ON_DEVICE}"
    page = upstream_of({f"{FOLDER}/torch.toml": both}).page("upstream/torch.html")
    assert "Nothing: no promise of its own is broken." in words(page)


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        (
            f"{FOLDER}/causes/torch/lost.py",
            LOST + "print()\n",
            r"no run of the present lost\.py; write it with: python ci/run_causes\.py",
        ),
        (RECORD, record(slow=SLOW), r"no run of the present lost\.py"),
        (
            DEVICE_RECORD,
            record(keeps=LOST),
            r"no run of the present keeps\.py; write",
        ),
        (DEVICE_RECORD, record(gone=KEPT), r"gone\.py was recorded and is missing"),
        (
            *(DEVICE_RECORD, record(keeps=KEPT).replace("output", "said")),
            "no record that device-deviations",
        ),
        (RECORD, "{}", r"torch\.json is no record; write it with: python ci/run_cau"),
        (f"{FOLDER}/causes/torch.toml", "[causes", "is not TOML"),
        (
            "docs/promises.md",
            tiny_project.FILES["docs/promises.md"].replace("P01", "P03"),
            r"lost\.py breaks the promise P01, which is not on the page of promises",
        ),
    ],
)
def test_what_is_missing_stops_the_build(upstream_of, file, text, said):
    from sphinx.errors import ExtensionError

    with pytest.raises(ExtensionError, match=said):
        upstream_of({file: text})


def test_one_deviation_of_two_projects_is_one_line(upstream):
    found = upstream.page("found/all.html")
    table = found[found.index("<thead>") : found.index("</table>")]
    head, lost, slow = map(words, table.split("<tr")[1:])
    assert head.endswith("Deviation Clauses Paddle PyTorch")
    assert lost.endswith("A tensor is lost TINY-1 ≠ differs ✗ breaks docs")
    assert slow.endswith("A tensor is slow TINY-1 ≠ differs")

    for link in (
        "../upstream/torch-lost.html",
        f"../source/{FOLDER}/causes/torch/slow.py.html",
        f"../source/{FOLDER}/causes/paddle/lost.py.html",
        "../TINY-1.html",
    ):
        assert f'href="{link}"' in found


def test_deviation_on_a_device_is_a_row_with_what_the_program_printed(upstream):
    page = upstream.page("device.html")
    row = words(page[page.index("<tbody>") :])
    assert row.startswith("The memory is *kept* TINY-1 said")
    assert "PyTorch 7.5, Python 3.11.7, Linux 6.1, 2026-01-02." in page
    for link in (f"source/{FOLDER}/causes/{KEEPS}.html", "TINY-1.html"):
        assert f'href="{link}"' in page


def test_clause_that_failed_on_a_device_for_another_cause_is_not_named(upstream_of):
    other = ENTRIES.replace(COUNTS, "Another cause.")
    page = upstream_of({f"{FOLDER}/torch.toml": other}).page("device.html")
    assert 'href="TINY-1.html"' not in page
