"""The suite runs wherever the temporary folder is, and whoever has started it."""

from __future__ import annotations

import signal


def test_temporary_folder_with_a_long_path_will_do(suite, monkeypatch, tmp_path):
    deep = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 5)
    deep.mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(deep))
    done = suite("--impl=numpy-copy", "--clause=SHARE-3", "--start-method=spawn")
    assert done.status == 0, done.text
    assert set(done.verdicts.values()) == {"pass"}
    assert not list(deep.iterdir())


def test_signals_that_the_caller_ignores_are_not_ignored_in_the_cases(suite):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup(1) does
    try:
        case = "--case=test_spawn.py::test_each_signal_is_told*"
        done = suite(case, "--strategy=file_descriptor")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert done.status == 0, done.text
    assert set(done.verdicts.values()) == {"pass"}
