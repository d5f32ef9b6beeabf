"""The keeper's functions one by one, in a directory of their own."""

import errno
import fcntl
import os
from functools import partial
from types import SimpleNamespace

import pytest
from keepers import unlocked
from sharedtensor.names import keeper

PROGRAM = "0123456789ab"


def name_at(place, program=PROGRAM):
    return f"sharedtensor-1-{'f' * 8}{program}{place:012x}"


NAME = name_at(7)


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setattr(keeper, "DIRECTORY", str(tmp_path))
    return tmp_path


@pytest.fixture
def locks(directory):
    opened = keeper.open_locks()
    yield opened
    os.close(opened)


def test_bytes_of_names_and_of_keepers_are_all_different_and_can_be_locked(locks):
    last, first = keeper.byte_of(name_at(0xFFFFFFFFFFFF)), keeper.byte_of_keeper("0")
    assert last < first
    for byte in (0, last, first, keeper.byte_of_keeper("f" * 12)):
        keeper.lock_byte(locks, byte)


def test_file_of_another_user_stays(directory, locks, monkeypatch):
    (directory / NAME).touch()
    another = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: another)
    assert keeper.is_removed(NAME, locks), "it is not for this process to remove"
    assert (directory / NAME).exists()


def test_directory_is_the_one_that_was_opened_whatever_is_mounted_there(
    directory, locks, monkeypatch
):
    over = directory / "mounted over it"
    over.mkdir()
    (directory / NAME).touch()
    monkeypatch.setattr(keeper, "DIRECTORY", str(over))
    assert keeper.sweep(PROGRAM, locks) == 0
    assert not (directory / NAME).exists()


# Sweeps


def test_sweep_removes_what_nobody_has_and_counts_the_rest(directory, locks):
    held = [unlocked(directory / name_at(place)) for place in range(2)]
    for fd in held:
        fcntl.flock(fd, fcntl.LOCK_SH)
    for place in range(2, 5):
        (directory / name_at(place)).touch()
    before = os.listdir("/proc/self/fd")
    assert keeper.sweep(PROGRAM, locks) == 2
    assert os.listdir("/proc/self/fd") == before
    assert sorted(os.listdir(directory)) == [name_at(0), name_at(1)]
    for fd in held:
        os.close(fd)
    assert keeper.sweep(PROGRAM, locks) == 0
    assert os.listdir(directory) == []


FOREIGN = {
    "of another program": name_at(7, "f" * 12),
    "without the prefix": NAME.replace("sharedtensor", "torch"),
    "without a byte": NAME[:-1] + "x",
    "without a token": "sharedtensor-",
    "short": f"sharedtensor-{'f' * 8}{PROGRAM}",
}


def make_link(path):
    path.with_name("target").touch()
    path.symlink_to("target")


def test_what_is_foreign_or_no_file_stays_and_is_not_waited_for(directory, locks):
    for name in FOREIGN.values():
        (directory / name).touch()
    (directory / name_at(1)).mkdir()
    make_link(directory / name_at(2))
    before = sorted(os.listdir(directory))
    assert keeper.sweep(PROGRAM, locks) == 0
    assert sorted(os.listdir(directory)) == before


LATER = errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES
NEVER = errno.ELOOP, errno.ENXIO


@pytest.mark.parametrize("number", [*LATER, *NEVER])
def test_what_could_not_be_opened_for_now_is_left(
    directory, locks, monkeypatch, number
):
    (directory / NAME).touch()

    def refuse(name, locks):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(keeper, "is_removed", refuse)
    assert keeper.sweep(PROGRAM, locks) == (number in LATER)


# When it looks, and when it ends

GRACE = 0.5


class Ended(Exception):
    """The clock has gone on for longer than the test lets a keeper run."""


@pytest.fixture
def clock(monkeypatch, locks):
    """Virtual time: how long each pause is, and what happens in each sweep."""
    clock = SimpleNamespace(now=100.0, pauses=[], sweeps=lambda: 0)
    clock.keep = partial(keeper.keep, PROGRAM, locks)

    def sleep(seconds):
        clock.pauses.append(seconds)
        clock.now += seconds
        if len(clock.pauses) > 50:
            raise Ended

    monotonic = SimpleNamespace(sleep=sleep, monotonic=lambda: clock.now)
    monkeypatch.setattr(keeper, "time", monotonic)
    monkeypatch.setattr(keeper, "sweep", lambda program, locks: clock.sweeps())
    return clock


@pytest.fixture
def presence():
    ours, theirs = os.pipe()
    ends = SimpleNamespace(ours=ours, theirs=theirs)
    yield ends
    for fd in {ends.ours, ends.theirs} - {None}:
        os.close(fd)


def leave(presence):
    os.close(presence.theirs)
    presence.theirs = None


def test_it_ends_a_grace_period_after_the_last_process(clock, presence):
    leave(presence)
    clock.keep(GRACE, presence.ours)
    assert GRACE < sum(clock.pauses) <= GRACE + 2 * keeper.INTERVAL
    assert set(clock.pauses) == {keeper.INTERVAL}


def test_it_stays_as_long_as_a_process_is_there(clock, presence):
    with pytest.raises(Ended):
        clock.keep(GRACE, presence.ours)


def test_directory_is_another_if_it_can_be_used(directory, locks, monkeypatch):
    assert not keeper.is_elsewhere(locks)
    monkeypatch.setattr(keeper, "DIRECTORY", str(directory / "another"))
    assert not keeper.is_elsewhere(locks), "there is none"
    (directory / "another").mkdir()
    assert keeper.is_elsewhere(locks)
    removed = SimpleNamespace(st_nlink=0, st_ino=0, st_dev=0)
    with monkeypatch.context() as patch:  # as a process whose own one was removed
        patch.setattr(os, "stat", lambda path: removed)
        found = keeper.is_elsewhere(locks)
    assert not found


def test_it_ends_where_its_directory_is_another_by_now(clock, presence, monkeypatch):
    monkeypatch.setattr(keeper, "is_elsewhere", lambda locks: True)
    clock.keep(GRACE, presence.ours)


def test_it_stays_as_long_as_a_name_is_left(clock, presence):
    leave(presence)
    left = iter([1] * 20)
    clock.sweeps = lambda: next(left, 0)
    clock.keep(GRACE, presence.ours)
    assert len(clock.pauses) > 20 + GRACE / keeper.INTERVAL


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "no descriptor"), MemoryError()]
)
def test_it_goes_on_when_it_cannot_look(clock, presence, error):
    leave(presence)
    looks = iter([True] * 20)

    def look():
        if next(looks, False):
            raise error
        return 0

    clock.sweeps = look
    clock.keep(GRACE, presence.ours)
    assert next(looks, None) is None


def test_it_takes_a_small_part_of_the_time_however_many_names_there_are(
    clock, presence
):
    def look():
        clock.now += 2.0
        return 1

    clock.sweeps = look
    with pytest.raises(Ended):
        clock.keep(GRACE, presence.ours)
    assert clock.pauses[1:] == pytest.approx([2.0 / keeper.LOAD] * 50)
