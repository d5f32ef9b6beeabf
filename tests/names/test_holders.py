"""How a process holds names, and has a keeper: with real keepers, which are killed."""

import errno
import fcntl
import mmap
import os
import signal
import subprocess

import pytest
from holdings import descriptors, eventually
from keepers import keepers_of, kill_keepers, unlocked
from sharedtensor import segments
from sharedtensor.errors import ManagerError, ResourceError
from sharedtensor.names import keeper, program


@pytest.fixture
def mine(monkeypatch):
    """A program that is this process's for one test, and whose keeper runs.

    Nothing that other tests share, or have started, belongs to it.
    """
    monkeypatch.setattr(program, "_id", "")
    return program.current()


@pytest.fixture
def name(mine):
    """A new name; nothing is left of it."""
    name = segments.new_name()
    yield name
    program.remove_unless_held(name)
    assert not exists(name)


def exists(name):
    return os.path.lexists(f"{keeper.DIRECTORY}/{name}")


def mapped(owned):
    """Map a file, and close its descriptor."""
    os.truncate(owned.fd, mmap.PAGESIZE)
    mapping = mmap.mmap(owned.fd, mmap.PAGESIZE)
    owned.close()
    return mapping


# Holds


def test_names_have_bytes_in_a_row_and_a_forked_child_has_others(mine):
    ours, theirs = os.pipe()
    if not os.fork():
        os.write(theirs, program.new_token().encode())
        os._exit(0)
    os.wait()
    child = f"sharedtensor-1-{os.read(ours, 100).decode()}"
    first, second = segments.new_name(), segments.new_name()
    assert keeper.byte_of(second) == keeper.byte_of(first) + 1
    assert keeper.byte_of(child) >> 24 != keeper.byte_of(first) >> 24
    for fd in (ours, theirs):
        os.close(fd)


def test_message_that_cannot_hold_its_names_is_refused(monkeypatch):
    def refuse(locks, byte):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(keeper, "lock_byte", refuse)
    with pytest.raises(ResourceError, match="Sending the names"):
        program.in_flight([f"sharedtensor-1-{'0' * 32}"])


def test_child_that_is_forked_between_lock_and_map_holds_nothing(name):
    owned = segments.create_named(name)
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.write(theirs, b"it has closed what it does not keep")
        signal.pause()
    os.read(ours, 1)
    owned.close()
    program.remove_unless_held(name)
    assert not exists(name)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for fd in (ours, theirs):
        os.close(fd)


def test_who_locks_a_file_waits_for_who_looks_at_it(name, monkeypatch):
    looking = unlocked(f"{keeper.DIRECTORY}/{name}")
    fcntl.flock(looking, fcntl.LOCK_EX)
    paused = []

    def sleep(seconds):
        paused.append(seconds)
        if len(paused) == 3:
            fcntl.flock(looking, fcntl.LOCK_UN)

    monkeypatch.setattr("sharedtensor.descriptors.time.sleep", sleep)
    segments.open_named(name).close()
    assert len(paused) == 3
    fcntl.flock(looking, fcntl.LOCK_EX)
    monkeypatch.setattr(segments, "TIMEOUT", 0)
    with pytest.raises(ResourceError, match="Locking the file"):
        segments.open_named(name)
    os.close(looking)


@pytest.mark.parametrize("call", [os.open, fcntl.flock], ids=["open", "lock"])
def test_drop_that_cannot_look_leaves_it_to_the_keeper(name, monkeypatch, call):
    def refuse(*arguments, **options):
        raise OSError(errno.EMFILE, "no descriptor")

    segments.create_named(name).close()
    with monkeypatch.context() as patch:
        module = os if call is os.open else fcntl
        patch.setattr(module, call.__name__, refuse)
        program.remove_unless_held(name)
    eventually(lambda: not exists(name))


# The keeper


def test_of_two_keepers_the_one_that_nobody_needs_ends(name, mine):
    kill_keepers(mine)
    program.current()
    first = keepers_of(mine)
    program.start_keeper(mine)
    assert len(keepers_of(mine)) == 2
    mapping = mapped(segments.create_named(name))
    eventually(lambda: not set(first).intersection(keepers_of(mine)) or exists(name))
    mapping.close()
    eventually(lambda: not exists(name))
    eventually(lambda: len(keepers_of(mine)) == 1)
    assert keepers_of(mine) != first


@pytest.mark.parametrize(
    ("executable", "said"),
    [
        ("/bin/false", "ended at once, with status 1"),
        ("/nowhere/python", "cannot be started"),
    ],
)
def test_keeper_that_does_not_start_is_an_error(mine, monkeypatch, executable, said):
    monkeypatch.setattr(program, "interpreter", lambda: executable)
    before, presence = descriptors(), program._presence
    with pytest.raises(ManagerError, match=said):
        program.start_keeper(mine)
    assert (descriptors(), program._presence) == (before, presence)


def test_keeper_that_does_not_come_up_is_killed(mine, monkeypatch):
    begun = []

    class Sleeping(subprocess.Popen):
        def __init__(self, **options):
            super().__init__(["sleep", "60"])
            begun.append(self)

    monkeypatch.setattr(subprocess, "Popen", Sleeping)
    monkeypatch.setattr(program, "TIMEOUT", 0.01)
    with pytest.raises(ManagerError, match=r"was not up after 0\.01 seconds"):
        program.start_keeper(mine)
    assert begun[0].returncode == -signal.SIGKILL


def test_shortage_of_descriptors_is_named(mine, monkeypatch):
    def refuse():
        raise OSError(errno.EMFILE, "no descriptor")

    monkeypatch.setattr(os, "pipe", refuse)
    with pytest.raises(
        ResourceError, match=r"Starting the manager.*limit of open files"
    ):
        program.start_keeper(mine)


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_grace_period_is_a_number_of_seconds(monkeypatch, text):
    monkeypatch.setenv(program.GRACE_VARIABLE, text)
    with pytest.raises(ManagerError, match=f"is '{text}'"):
        program.grace_period()
