"""What is said of generated mutants holds for the reference as it is."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "evidence" / "mutants" / "equivalent_mutants.toml"
LISTED = tomllib.loads(FILE.read_text())["mutant"]


@pytest.mark.parametrize("mutant", LISTED, ids=lambda mutant: mutant["after"])
def test_each_has_lines_that_exist_and_a_reason(mutant):
    source = (ROOT / mutant["file"]).read_text()
    assert all(line in source for line in mutant["before"].splitlines())
    assert mutant["before"] != mutant["after"]
    assert mutant["reason"].endswith(".")
