"""How a process holds names, and has a keeper: with real keepers, which are killed."""

import errno
import fcntl
import mmap
import os
import signal
import subprocess
import sys

import pytest
from keepers import eventually, keepers_of, kill_keepers, names_of, unlocked
from sharedtensor import segments
from sharedtensor.errors import ManagerError, ResourceError
from sharedtensor.names import keeper, program
from sharedtensor_conformance.harness import process_tree


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


def descriptors():
    return len(os.listdir("/proc/self/fd"))


class Child:
    """A forked child that waits for its end."""

    def __enter__(self):
        ours, theirs = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.write(theirs, b"it has closed what it does not keep")
            signal.pause()
        os.read(ours, 1)
        os.close(ours)
        os.close(theirs)
        return self

    def __exit__(self, *error):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


# Tokens


def test_tokens_say_their_program_and_follow_one_another(mine):
    first, second = (f"sharedtensor-1-{program.new_token()}" for _ in range(2))
    assert segments.NAME.fullmatch(first)
    assert keeper.program_of(first) == keeper.program_of(second) == mine
    assert keeper.byte_of(second) == keeper.byte_of(first) + 1
    assert first[:23] != second[:23], "the random part"


def test_forked_child_makes_tokens_of_its_own(mine):
    ours, theirs = os.pipe()
    if not os.fork():
        os.write(theirs, program.new_token().encode())
        os._exit(0)
    os.wait()
    child = os.read(ours, 100).decode()
    mother = program.new_token()
    assert child[keeper.PROGRAM] == mother[keeper.PROGRAM]
    assert child[keeper.PLACE][:6] != mother[keeper.PLACE][:6]
    for fd in (ours, theirs):
        os.close(fd)


# Holds


def test_mapping_holds_a_name_without_a_descriptor(name):
    before = descriptors()
    mapping = mapped(segments.create_named(name))
    program.remove_unless_held(name)
    assert exists(name)
    again = mapped(segments.open_named(name))
    mapping.close()
    program.remove_unless_held(name)
    assert exists(name)
    assert descriptors() == before + 1, "that of the mapping, which Python keeps"
    again.close()


def test_message_that_cannot_be_made_leaves_nothing(monkeypatch):
    def refuse(locks, byte):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(keeper, "lock_byte", refuse)
    before = descriptors()
    with pytest.raises(ResourceError, match="Sending the names"):
        program.in_flight([f"sharedtensor-1-{'0' * 32}"])
    assert descriptors() == before


def test_child_that_is_forked_between_lock_and_map_holds_nothing(name):
    owned = segments.create_named(name)
    with Child():
        owned.close()
        program.remove_unless_held(name)
        assert not exists(name)


def test_child_that_is_forked_afterwards_holds_the_name_by_the_same_lock(name):
    mapping = mapped(segments.create_named(name))
    with Child():
        mapping.close()
        program.remove_unless_held(name)
        assert exists(name)


def test_who_locks_a_file_waits_for_who_looks_at_it(name, monkeypatch):
    looking = unlocked(f"{keeper.DIRECTORY}/{name}")
    fcntl.flock(looking, fcntl.LOCK_EX)
    paused = []

    def sleep(seconds):
        paused.append(seconds)
        if len(paused) == 3:
            fcntl.flock(looking, fcntl.LOCK_UN)

    monkeypatch.setattr(program.time, "sleep", sleep)
    segments.open_named(name).close()
    assert len(paused) == 3
    fcntl.flock(looking, fcntl.LOCK_EX)
    monkeypatch.setattr(program, "TIMEOUT", 0)
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


def test_killed_keeper_is_started_again_by_the_next_share(name, mine):
    assert keepers_of(mine)
    mapping = mapped(segments.create_named(name))
    kill_keepers(mine)
    assert keepers_of(mine) == []
    program.new_token()
    assert keepers_of(mine)
    mapping.close()
    eventually(lambda: not exists(name))


def test_stopped_keeper_stops_nobody(name, mine):
    kill_keepers(mine)
    program.current()
    [stopped] = keepers_of(mine)
    process_tree.stop(stopped)
    try:
        mapping = mapped(segments.create_named(name))
        with_it = program.in_flight([name])
        assert program.current() == mine
        with_it.close()
        mapping.close()
        program.remove_unless_held(name)
        assert not exists(name)
        assert keepers_of(mine) == [stopped]
    finally:
        process_tree.resume(stopped)


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


def test_file_in_the_place_of_the_pipe_stays_open(mine):
    fd = program._presence.fd
    os.close(fd)
    assert os.open(os.devnull, os.O_RDONLY) <= fd
    own = os.dup2(0, fd, inheritable=False)
    before = os.fstat(own)
    program.start_keeper(mine)
    assert os.fstat(own) == before
    assert program._presence.fd != own
    os.close(own)


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


LEAVES = """
import os, signal, sys
import sharedtensor
from keepers import kill_keepers
from sharedtensor.names import program

sharedtensor.set_sharing_strategy("file_system")
tensor = sharedtensor.zeros(1).share_memory_()
mine, child = program.current(), 0
if "child" in sys.argv:
    child = os.fork()
    if not child:
        os.closerange(1, 3)
        signal.pause()
    kill_keepers(mine)
print(mine, child)
"""


def run(*arguments):
    """Run a program that shares, to its end; return its id and its child."""
    here = os.path.dirname(__file__)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([here, *sys.path])}
    command = [sys.executable, "-c", LEAVES, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60)
    assert done.stderr == b""
    ended, child = done.stdout.split()
    return ended.decode(), int(child)


def test_no_keeper_and_no_file_is_left_of_a_program():
    ended, _ = run()
    eventually(lambda: not keepers_of(ended))
    assert names_of(ended) == []


def test_killed_keeper_is_started_again_at_exit_for_the_last_ones():
    ended, child = run("child")
    try:
        assert keepers_of(ended)
        assert len(names_of(ended)) == 1
    finally:
        os.kill(child, signal.SIGKILL)
    eventually(lambda: not names_of(ended) and not keepers_of(ended))
