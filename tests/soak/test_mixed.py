"""All soak runs at once, for seconds: what holds, and a subject that is broken."""

import multiprocessing
import tempfile
import time
import uuid
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

SHORT = ("--minutes=0.02", "--every=5", "--only=hostile")


@pytest.fixture
def mixed(scripts, monkeypatch):
    """Run with turns that are short; return the sentence and the record.

    In a process of its own: at its end it kills all processes below it.
    """
    import mixed

    def run_mixed(turn, *options):
        monkeypatch.setitem(mixed.TURNS, "hostile", ("hostile", *turn))
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
            return pool.submit(work, [*SHORT, *options]).result()

    return run_mixed


def work(options):
    import mixed

    record = {}
    return mixed.work(mixed.options().parse_args(options), record), record


def test_what_is_watched_goes_on_beside_the_turns(mixed):
    sentence, record = mixed(("--episodes=1", "--hold=0.1"))
    assert "turns (1 of hostile.py); all held." in sentence
    assert set(record["watched"]) == {"file_descriptor", "file_system"}
    for found in record["watched"].values():
        assert found["rounds"] >= found["every"] == found["samples"]["round"][0]
    assert [turn["script"] for turn in record["turns"]] == ["hostile"]


def test_a_turn_that_does_not_hold_ends_the_run_long_before_its_time(mixed):
    from recording import NotHeld

    began = time.monotonic()
    with pytest.raises(NotHeld, match=r"--no-such-option.* ended with status 4"):
        mixed(("--no-such-option",), "--minutes=10")
    assert time.monotonic() - began < 300


@pytest.fixture
def temporary(monkeypatch):
    """A folder for temporary files, with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="m-", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr("tempfile.tempdir", folder)
        yield Path(folder)


def test_nothing_is_left_of_scripts_that_have_to_be_killed(
    mixed, monkeypatch, temporary
):
    """The processes of a pair are in sessions of their own."""
    from recording import NotHeld
    from sharedtensor_conformance.harness.kernel.process_tree import wait_until

    mark = str(uuid.uuid4())
    monkeypatch.setenv("MARK_OF_THIS_TEST", mark)
    monkeypatch.setattr("mixed.GRACE", 0.0)

    def fail_once_the_pairs_run(*ignored):
        pairs = lambda: sum(b"sharer.py" in each for each in living_with(mark))  # noqa: E731
        assert wait_until(lambda: pairs() > 1, 60)
        raise NotHeld("a turn has failed")

    monkeypatch.setattr("mixed.turns", fail_once_the_pairs_run)
    with pytest.raises(NotHeld, match="a turn has failed"):
        mixed((), "--minutes=10", "--every=1000000")
    assert wait_until(lambda: not living_with(mark), 30)
    assert list(temporary.iterdir()) == []


def living_with(mark):
    """Return the commands of the processes whose environment has a text."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes())
    return found


def test_what_is_watched_and_broken_is_the_finding(mixed):
    from recording import NotHeld

    with pytest.raises(NotHeld, match=r"rounds\.py .*: .*without its grad"):
        mixed(("--episodes=1", "--hold=0.1"), "--mutant=drops_grad")
