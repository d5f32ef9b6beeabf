"""The table of the fixes of torch: what it says of costs and lines."""

import pytest
from sharedtensor_bench.results import Result
from torch_patches import FIXES, NAMES

ROW = ("file_descriptor", "new-4KiB-round-trip", "pipe", "fork", "us")


@pytest.fixture
def fixes(extension):
    return extension("records.fixes")


def test_cost_is_told_in_units_of_torch_alone(fixes):
    plain = Result("torch", *ROW, [100.0, 100.0, 100.0])
    one = Result("torch-patched-only-grads", *ROW, [110.0, 120.0, 150.0])
    found = [plain, one]
    assert fixes.costs_of(one.implementation, found) == ["1.20 (1.15 to 1.35)"]
    assert fixes.costs_of("torch-patched", found) == ["not measured"]


def test_lines_are_those_of_statements(fixes):
    lines = {name: fixes.lines_of(name) for name in NAMES}
    assert min(lines.values()) > 10
    assert fixes.lines_of("replacing") == 10


def test_results_name_each_fix_as_the_page_does(fixes):
    from torch_patches import adapter

    named = [getattr(adapter, f"only_{fix.name}").name for fix in FIXES]
    assert named == [f"{fixes.ONE}{name}" for name in NAMES]
