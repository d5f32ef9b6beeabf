"""An actor keeps nothing of what the implementation had when it raised."""

from __future__ import annotations

import gc
import multiprocessing
import os
import weakref
from contextlib import suppress

import pytest
from sharedtensor_conformance.chapters import group_actions
from sharedtensor_conformance.harness.remote.actor import Actor, FromImplementation
from sharedtensor_conformance.harness.remote.actor import from_implementation as marked


@pytest.fixture
def no_collector():
    """The collector of cycles is off, as it is between two of its rounds."""
    gc.disable()
    yield
    gc.enable()


def test_nothing_is_kept_of_what_raised(no_collector):
    """Else a descriptor that a refused message had would count as leaked."""
    kept = []

    def raises():
        held = set()
        kept.append(weakref.ref(held))
        with marked():
            raise ValueError

    with suppress(FromImplementation):
        raises()
    assert kept[0]() is None


def test_exceptions_are_marked_once():
    with pytest.raises(FromImplementation) as caught, marked(), marked():
        raise ValueError
    assert isinstance(caught.value.__cause__, ValueError)


def test_block_that_raises_nothing_is_left_alone():
    with marked():
        pass


class Operations:
    """Operations of an adapter, of which one takes too little."""

    def write(self, tensor, value):
        raise AssertionError("nobody gets here")

    def read(self, tensor, index):
        return len(tensor) + index  # a TypeError: it is of the implementation's making


def answer_of(name, *arguments):
    actor = Actor("owner", setting=None)
    actor.operations = Operations()
    return actor.answer({"do": "operate", "with": [name, *arguments]})


def test_operation_that_does_not_take_its_arguments_is_the_fault_of_the_adapter():
    answer = answer_of("write", 1, 2, 3)
    assert answer.keys() == {"fault"}
    said = "the adapter's operation 'write' does not take what the contract says"
    assert said in answer["fault"]["message"]


def test_type_error_in_an_operation_is_the_implementations():
    answer = answer_of("read", 1, 2)
    assert answer.keys() == {"raised"}
    assert answer["raised"]["type"] == "TypeError"


class NeverReady(Operations):
    """Operations whose groups have processes that never execute their task."""

    class multiprocessing:
        get_context = staticmethod(multiprocessing.get_context)
        ProcessRaisedException = ProcessExitedException = ChildProcessError

        @staticmethod
        def spawn(function, arguments, **options):
            return object()


def test_group_that_does_not_become_ready_is_a_failure_of_the_implementation():
    actor = Actor("owner", setting=None)
    actor.operations = NeverReady()
    function = {"function": f"{group_actions.__name__}:start_group_and_wait"}
    arguments = [function, "wait", 2, [], "spawn()", 0.01]
    answer = actor.answer({"do": "run", "with": arguments})
    assert answer.keys() == {"raised"}
    assert answer["raised"]["type"] == "GroupNotReady"
    said = "a process of a group of 2 was not ready within 0.01 s"
    assert answer["raised"]["message"] == said


class Missing(Operations):
    """An operation whose exception names a file of the installed implementation."""

    def read(self, tensor, index):
        raise OSError(
            f"no answer from '/home/me/env/lib/python3.9/{tensor}' of {index}"
        )


def test_message_does_not_say_where_the_environment_is(monkeypatch):
    monkeypatch.setitem(globals(), "Operations", Missing)
    answer = answer_of("read", "site-packages/its/program", "/dev/shm/a")
    said = "no answer from '.../site-packages/its/program' of /dev/shm/a"
    assert answer["raised"]["message"] == said


@pytest.mark.parametrize("folder", ["here", "here/below"])
def test_message_does_not_say_where_the_suite_runs(monkeypatch, tmp_path, folder):
    """As `tempfile` does, where it finds no place for a temporary file."""

    class Homeless(Operations):
        def read(self, tensor, index):
            place = os.getcwd()
            raise OSError(f"none in ['/tmp', '{place}', '{place}s', '{place}/x']")

    (tmp_path / "here" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / folder)
    monkeypatch.setitem(globals(), "Operations", Homeless)
    said = answer_of("read", 1, 2)["raised"]["message"]
    assert said == f"none in ['/tmp', '.', '{tmp_path / folder}s', './x']"


def test_message_is_as_it_was_where_no_place_is_told(monkeypatch):
    monkeypatch.chdir("/")
    monkeypatch.setitem(globals(), "Operations", Missing)
    said = answer_of("read", "/a/b", "/")["raised"]["message"]
    assert said == "no answer from '/home/me/env/lib/python3.9//a/b' of /"
