"""The suite runs wherever the temporary folder is."""

from __future__ import annotations


def test_temporary_folder_with_a_long_path_will_do(suite, monkeypatch, tmp_path):
    deep = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 5)
    deep.mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(deep))
    done = suite("--impl=numpy-copy", "--clause=SHARE-3", "--start-method=spawn")
    assert done.status == 0, done.text
    assert set(done.verdicts.values()) == {"pass"}
    assert not list(deep.iterdir())
