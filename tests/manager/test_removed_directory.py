"""Which directory a manager may remove, and when. Clause MGR-14."""

import os
import socket

import pytest
from sharedtensor.manager import daemon


@pytest.fixture(params=["short", "long"])
def directory(request, tmp_path):
    """A directory, also one whose path does not fit into a socket's address."""
    path = tmp_path / ("x" * (150 if request.param == "long" else 1))
    path.mkdir(0o700)
    return path


@pytest.fixture
def bound(directory):
    """The socket in the directory, which does not listen."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with found, daemon.short_path(str(directory / daemon.SOCKET)) as path:
        found.bind(path)
        yield found


@pytest.fixture
def presence(directory):
    """A presence pipe of a manager before, which somebody has open."""
    path = directory / f"{daemon.PRESENCE}-of-before"
    os.mkfifo(path)
    found = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    yield found
    os.close(found)


def remove(directory):
    """Try to remove a directory, as a manager does or a client that gives up."""
    folder = os.open(directory, os.O_RDONLY)
    try:
        daemon.remove_unused_directory(str(directory), folder)
    finally:
        os.close(folder)


def test_one_with_a_socket_that_does_not_listen_goes(directory, bound):
    remove(directory)
    assert not directory.exists()


def test_one_with_the_pipe_and_the_socket_of_dead_processes_goes(directory, bound):
    os.mkfifo(directory / daemon.PRESENCE)
    bound.listen()
    bound.close()
    remove(directory)
    assert not directory.exists()


def test_one_with_a_socket_that_listens_stays(directory, bound):
    bound.listen()
    remove(directory)
    assert (directory / daemon.SOCKET).exists()


def test_one_whose_manager_is_too_busy_to_accept_stays(directory, bound):
    bound.listen(0)
    waiting = []
    for _ in range(3):
        waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        waiting[-1].setblocking(False)
        with daemon.short_path(str(directory / daemon.SOCKET)) as path:
            if waiting[-1].connect_ex(path):
                break
    remove(directory)
    for one in waiting:
        one.close()
    assert (directory / daemon.SOCKET).exists()


def test_one_with_a_presence_pipe_that_is_open_stays(directory, presence):
    remove(directory)
    assert directory.exists()


def test_one_with_a_journal_stays(directory):
    (directory / daemon.JOURNAL).write_text("sharedtensor-x\n")
    remove(directory)
    assert (directory / daemon.JOURNAL).exists()


def test_one_that_another_has_locked_stays(directory):
    folder = os.open(directory, os.O_RDONLY)
    assert daemon.lock(folder)
    remove(directory)
    os.close(folder)
    assert directory.exists()


def test_one_that_was_made_anew_stays(directory):
    folder = os.open(directory, os.O_RDONLY)
    directory.rmdir()
    directory.mkdir()
    daemon.remove_unused_directory(str(directory), folder)
    os.close(folder)
    assert directory.exists()


@pytest.fixture
def listener(directory):
    """What a manager has of its directory, which is told to end."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    found = daemon.Listener(listening, str(directory))
    found.open()
    yield found
    os.close(found.folder)
    listening.close()


def test_one_that_has_listened_goes_when_its_lock_is_free(
    directory, listener, monkeypatch
):
    seen = []

    def lock(folder):
        seen.append(directory.exists())
        return len(seen) == 3

    monkeypatch.setattr(daemon, "lock", lock)
    listener.remove_directory(has_listened=True)
    assert seen == [True, True, True]
    assert not directory.exists()


def test_one_that_has_listened_goes_although_a_stopped_client_keeps_the_lock(
    directory, listener, monkeypatch
):
    monkeypatch.setattr(daemon, "LOCK_WAIT", 0.0)
    folder = os.open(directory, os.O_RDONLY)
    assert daemon.lock(folder)
    listener.remove_directory(has_listened=True)
    os.close(folder)
    assert not directory.exists()
