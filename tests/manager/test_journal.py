"""The journal has the names for a successor, in as far as its disk has room.

Clause MGR-14.
"""

import builtins
import errno
import os
import socket

import pytest
from sharedtensor.manager.daemon import Journal

NAMES = [b"sharedtensor-1-a", b"sharedtensor-1-b", b"sharedtensor-1-c"]


@pytest.fixture
def journal(tmp_path):
    """One that is open and has the first name."""
    made = Journal(str(tmp_path / "names"))
    assert made.open() == []
    made.add(NAMES[:1])
    yield made
    os.close(made.file)


@pytest.fixture
def successor(journal):
    """Return the names that a successor finds."""
    opened = []

    def names():
        opened.append(Journal(journal.path))
        return opened[-1].open()

    yield names
    for one in opened:
        os.close(one.file)


def write_no_more_than(monkeypatch, count):
    """Let the disk have room for so many bytes of each write."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, text: write(file, text[:count]))


def test_a_successor_finds_what_was_added(journal, successor):
    journal.add(NAMES[1:])
    assert successor() == NAMES


def test_a_successor_finds_what_took_the_place_of_all(journal, successor):
    journal.replace(NAMES[1:2])
    journal.add(NAMES[2:])
    assert successor() == NAMES[1:]


def test_a_name_after_one_that_was_cut_short_is_whole(journal, successor, monkeypatch):
    with monkeypatch.context() as patch:
        write_no_more_than(patch, 7)
        journal.add(NAMES[1:2])
    journal.add(NAMES[2:])
    assert successor() == [NAMES[0], NAMES[2]]


def test_a_name_after_two_that_were_cut_short_is_whole(journal, successor, monkeypatch):
    with monkeypatch.context() as patch:
        write_no_more_than(patch, 7)
        journal.add(NAMES[1:2])
        write_no_more_than(patch, 1)
        journal.add(NAMES[1:2])
    journal.add(NAMES[2:])
    assert successor() == [NAMES[0], NAMES[2]]


def test_a_successor_begins_a_line_after_one_that_was_cut_short(
    journal, successor, monkeypatch
):
    with monkeypatch.context() as patch:
        write_no_more_than(patch, 7)
        journal.add(NAMES[1:2])
    later = Journal(journal.path)
    assert later.open() == NAMES[:1]
    later.add(NAMES[2:])
    os.close(later.file)
    assert successor() == [NAMES[0], NAMES[2]]


def fail(*arguments):
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def open_nothing(patch):
    """Let there be no descriptor left."""
    patch.setattr(os, "open", fail)
    patch.setattr(builtins, "open", fail)


def open_the_new_one_alone(patch):
    """Let there be one for what takes the journal's place, and none after that."""
    opened = os.open

    def open_or_fail(path, *arguments):
        return (opened if path.endswith("-new") else fail)(path, *arguments)

    patch.setattr(os, "open", open_or_fail)


@pytest.mark.parametrize("limit", [open_nothing, open_the_new_one_alone])
def test_names_are_written_into_the_journal_alone(
    journal, successor, monkeypatch, limit
):
    """Not into what has the number of a descriptor that was closed."""
    with monkeypatch.context() as patch:
        limit(patch)
        journal.replace(NAMES[:1])
    one, other = socket.socketpair()
    journal.add(NAMES[1:])
    with one, other:
        for end in (one, other):
            with pytest.raises(BlockingIOError):
                end.recv(1, socket.MSG_DONTWAIT)
    assert successor() == NAMES


def test_a_journal_that_cannot_be_replaced_stays(journal, successor, monkeypatch):
    opened = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail)
        journal.replace(NAMES[2:])
    assert len(os.listdir("/proc/self/fd")) == opened
    journal.add(NAMES[1:])
    assert successor() == NAMES


def test_a_journal_that_could_not_be_opened_is_written_when_it_is_replaced(
    journal, successor
):
    late = Journal(journal.path)
    late.replace(NAMES[:2])
    late.add(NAMES[2:])
    os.close(late.file)
    assert successor() == NAMES
