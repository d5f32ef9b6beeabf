"""What has to be so before a tag becomes a release."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "ci"))
from release_check import ROOT, main, named_versions, problems

FILES = {
    "pyproject.toml": '[project]\nversion = "1.2.0"\n',
    "conformance/sharedtensor_conformance/clauses.py": 'SPEC_VERSION = "1.2.0"\n',
    "CITATION.cff": "cff-version: 1.2.0\nversion: 1.2.0\n",
    "CHANGELOG.md": "# Changelog\n\n## 1.2.0 (2027-01-02)\n\n## 1.1.0 (2026-12-01)\n",
}


@pytest.fixture
def root(tmp_path):
    """A project that can be released as v1.2.0."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_tag_of_the_version_that_all_files_name_can_be_released(root):
    assert problems("v1.2.0", root) == []


@pytest.mark.parametrize("name", FILES)
def test_file_that_names_another_version_is_told(root, name):
    file = root / name
    file.write_text(file.read_text().replace("1.2.0", "1.1.9"))
    (problem,) = problems("v1.2.0", root)
    assert problem.startswith(f"{name} names the version '1.1.9'")


def test_tag_that_is_none_of_a_release_is_told(root):
    assert "is not that of a release" in problems("1.2.0", root)[0]


def test_version_that_is_said_to_be_unreleased_is_told(root):
    file = root / "CHANGELOG.md"
    file.write_text(file.read_text().replace("(2027-01-02)", "(unreleased)"))
    (problem,) = problems("v1.2.0", root)
    assert "give the date instead" in problem


def test_files_of_this_project_name_one_version():
    assert len(set(named_versions(ROOT).values())) == 1


def test_status_says_that_a_tag_cannot_be_released(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["release_check.py", "v0.0.0"])
    assert main() == 1
    assert capsys.readouterr().err


@pytest.mark.parametrize("given", [[], ["v1.0.0", "v1.1.0"]])
def test_anything_but_one_tag_is_a_usage_error(given, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["release_check.py", *given])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err
