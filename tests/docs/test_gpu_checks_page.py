"""What the site says of checks on a GPU, where there is a record and where none is."""

import json

import pytest
import tiny_project

CONFIGURATION = tiny_project.FILES["docs/conf.py"] + 'extensions += ["trust"]\n'
PAGE = "---\norphan: true\n---\n# GPU\n\n```{gpu-checks} reports/gpu\n```\n"
FOLDER = "docs/reports/gpu"
STEP = {"name": "smoke", "title": "One is sent.", "status": "held", "seconds": 1.5}
FACTS = {
    "devices": [{"name": "A GPU"}],
    "met": {"driver": "580.65.06", "libraries": {"cupy-cuda13x": "14.2.0"}},
}


def page_of(site_of, record, facts=FACTS):
    files = {"docs/conf.py": CONFIGURATION, "docs/gpu.md": PAGE}
    if record is not None:
        files[f"{FOLDER}/summary.json"] = json.dumps(record)
        files[f"{FOLDER}/facts.json"] = json.dumps(facts)
    site = site_of(files)
    return " ".join(site.page("gpu.html").split()), site.warnings


def test_a_device_that_nobody_had_is_said_to_be_missing(site_of):
    text, warnings = page_of(site_of, None)
    assert warnings == ""
    assert "Not yet run on a device" in text


def test_steps_and_machine_are_those_of_the_record(site_of):
    record = {"emulated": False, "saved": "2026-01-02T03:04:05Z", "steps": [STEP]}
    text, warnings = page_of(site_of, record)
    assert warnings == ""
    assert "A GPU; driver 580.65.06; cupy-cuda13x 14.2.0." in text
    for shown in ("smoke", "One is sent.", "held", "1.5", "2026-01-02T03:04:05Z"):
        assert shown in text
    assert "Not yet run" not in text
    assert "emulated" not in text


def test_a_rehearsal_is_never_shown_as_a_device(site_of):
    record = {"emulated": True, "saved": "2026-01-02T03:04:05Z", "steps": [STEP]}
    text, _ = page_of(site_of, record)
    assert "Not yet run on a device" in text
    assert "nothing here counts as CUDA" in text
    assert "held (emulated)" in text


@pytest.mark.parametrize("record", [{"steps": []}, {"emulated": False, "steps": [{}]}])
def test_a_record_that_is_none_stops_the_build(site_of, record):
    with pytest.raises(Exception, match="is no record of checks"):
        page_of(site_of, record)
