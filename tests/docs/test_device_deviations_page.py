"""What the site says of PyTorch's deviations on a device, and what it needs for it."""

import hashlib
import json

import pytest
import tiny_project
from sharedtensor_conformance.report.verdicts import Verdict
from tiny_report import case_of, write_report

EXPECTATIONS = "conformance/sharedtensor_conformance/expectations"
PROGRAM = '"""The memory is *kept*.\n\nFor ever.\n"""\n'
RECORD = "docs/reports/causes/torch-device.json"
REPORT = "reports/torch.jsonl"
CAUSE = "Nobody counts down."
ENTRY = f"""\
[[expect]]
clause = "TINY-1"
outcomes = ["fail"]
cause = "{CAUSE}"
reproducer = "torch/device/keeps.py"
date = 2026-01-01
"""
PAGE = f"""\
---
orphan: true
---
# Device

```{{record}} device-deviations reports/causes/torch-device.json {REPORT}
```
"""


def record(program):
    digest = hashlib.sha256(program.encode()).hexdigest()
    machine = {"date": "2026-01-02", "version": "7.5", "python": "3.12.3"}
    programs = {"keeps": {"sha256": digest, "output": "64 MiB"}}
    return json.dumps({**machine, "kernel": "Linux 6.1", "programs": programs})


FILES = {
    "docs/conf.py": tiny_project.FILES["docs/conf.py"] + 'extensions += ["records"]\n',
    "docs/device.md": PAGE,
    f"{EXPECTATIONS}/torch.toml": ENTRY,
    f"{EXPECTATIONS}/causes/torch/device/keeps.py": PROGRAM,
    RECORD: record(PROGRAM),
}


@pytest.fixture
def page_of(site_of, tmp_path):
    """Build the page with some of its files changed."""
    write_report(tmp_path, "torch", case_of(Verdict.FAIL, cause=CAUSE))

    def page(changed=None):
        site = site_of(FILES | (changed or {}))
        assert site.warnings == ""
        return site.page("device.html")

    return page


def test_row_has_title_program_clause_and_output(page_of):
    page = page_of()
    assert "The memory is *kept*" in page
    assert f"source/{EXPECTATIONS}/causes/torch/device/keeps.py.html" in page
    assert 'href="tiny.html#TINY-1"' in page
    assert "64 MiB" in page
    assert "PyTorch 7.5, Python 3.12.3, Linux 6.1, 2026-01-02." in page


def test_clause_that_failed_for_another_cause_is_not_named(page_of):
    page = page_of({f"{EXPECTATIONS}/torch.toml": ENTRY.replace(CAUSE, "Another.")})
    assert 'href="tiny.html#TINY-1"' not in page


def test_program_that_has_changed_since_its_record_stops_the_build(page_of):
    with pytest.raises(Exception, match=r"no run of the present keeps\.py; write it"):
        page_of({RECORD: record(PROGRAM + "print()\n")})


def test_record_of_a_program_that_is_gone_stops_the_build(page_of):
    with pytest.raises(Exception, match=r"lost\.py was recorded and is missing"):
        page_of({RECORD: record(PROGRAM).replace("keeps", "lost")})


def test_record_that_lacks_an_output_stops_the_build(page_of):
    with pytest.raises(Exception, match="no record that device-deviations"):
        page_of({RECORD: record(PROGRAM).replace("output", "said")})
