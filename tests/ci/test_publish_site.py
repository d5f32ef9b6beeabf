"""How a built site gets into the folder of its version."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "ci"))
from publish_site import Refused, main, publish


@pytest.fixture
def built(tmp_path):
    """A built site, and what Sphinx keeps for itself."""
    folder = tmp_path / "built"
    (folder / ".doctrees").mkdir(parents=True)
    (folder / "index.html").write_text("first")
    (folder / "old.html").write_text("old")
    return folder


@pytest.fixture
def published(tmp_path):
    """The folder that is served; nothing is in it yet."""
    folder = tmp_path / "published"
    folder.mkdir()
    return folder


def listed(published):
    return json.loads((published / "versions.json").read_text())


def test_versions_are_listed_by_their_numbers_and_dev_is_last(built, published):
    for name in ("dev", "0.9.0", "0.10.0", "0.2.1"):
        publish(built, published, name)
    assert listed(published) == ["0.10.0", "0.9.0", "0.2.1", "dev"]
    assert "url=0.10.0/" in (published / "index.html").read_text()
    assert (published / ".nojekyll").is_file()
    assert not (published / "dev" / ".doctrees").exists()


def test_first_page_leads_to_dev_before_there_is_a_release(built, published):
    publish(built, published, "dev")
    assert "url=dev/" in (published / "index.html").read_text()


def test_missing_pages_are_answered_by_the_page_of_the_newest_release(built, published):
    publish(built, published, "0.1.0")
    assert not (published / "404.html").exists()
    for name in ("0.2.0", "dev"):
        (built / "404.html").write_text(f"missing in {name}")
        publish(built, published, name)
    assert (published / "404.html").read_text() == "missing in 0.2.0"


def test_dev_is_replaced_as_a_whole(built, published):
    publish(built, published, "dev")
    (built / "old.html").unlink()
    publish(built, published, "dev")
    assert sorted(file.name for file in (published / "dev").iterdir()) == ["index.html"]


def test_release_is_never_changed(built, published):
    publish(built, published, "1.0.0")
    (built / "index.html").write_text("second")
    with pytest.raises(Refused, match=r"1\.0\.0 is already published"):
        publish(built, published, "1.0.0")
    assert (published / "1.0.0" / "index.html").read_text() == "first"


@pytest.mark.parametrize("name", ["latest", "1.0", "v1.0.0", "../1.0.0", "1.0.0rc1"])
def test_name_of_no_version_is_refused(built, published, name):
    with pytest.raises(Refused, match="is not a version"):
        publish(built, published, name)
    assert list(published.iterdir()) == []


def test_refusal_is_one_sentence(tmp_path, published, monkeypatch, capsys):
    given = ["publish_site.py", str(tmp_path), str(published), "dev"]
    monkeypatch.setattr(sys, "argv", given)
    assert main() == 1
    assert capsys.readouterr().err.endswith("build it with Sphinx\n")
