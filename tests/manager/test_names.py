"""What the manager concludes from what it is told, without a process. Clause FS-2."""

import pytest
from sharedtensor.manager.accounting import Names

NAME = b"sharedtensor-1-a"
OTHER = b"sharedtensor-1-b"


@pytest.fixture
def names():
    return Names()


def due_after_a_sweep(names, news=lambda: None):
    """Sweep once, with this news in it; return the names to remove."""
    names.begin_sweep()
    news()
    return names.confirmed


def test_a_name_is_due_one_sweep_after_it_became_unreachable(names):
    holds = {}
    names.register(holds, NAME)
    names.release(holds, NAME)
    assert names.candidates == {NAME}
    assert due_after_a_sweep(names) == {NAME}


def test_a_name_is_not_due_if_that_sweep_brings_news_of_it(names):
    """The REGISTER of a process in the middle was still unread."""
    first, middle = {}, {}
    names.register(first, NAME)
    names.release(first, NAME)
    assert due_after_a_sweep(names, lambda: names.register(middle, NAME)) == set()
    names.release(middle, NAME)
    assert due_after_a_sweep(names) == {NAME}


def test_a_name_is_not_due_if_that_sweep_brings_an_announcement(names):
    """Clause MGR-16: nobody has to hold what is announced."""
    holds = {}
    names.register(holds, NAME)
    names.release(holds, NAME)
    assert due_after_a_sweep(names, lambda: names.announce([NAME], True)) == set()
    names.close([NAME])
    assert due_after_a_sweep(names) == {NAME}


@pytest.mark.parametrize("order", ["announced first", "acknowledged first"])
def test_counted_messages_add_up_in_either_order(names, order):
    """Clause LIFE-2."""
    calls = [names.announce_counted, names.close_counted]
    for call in calls if order == "announced first" else reversed(calls):
        assert names.candidates == set()
        call({}, NAME)
    assert names.candidates == {NAME}


def test_an_announcement_without_a_pipe_keeps_its_names_to_the_end(names):
    names.announce([NAME, OTHER], has_pipe=False)
    assert names.candidates == set()
    assert all(usage.is_kept for usage in names.usages.values())


def test_the_end_of_a_client_takes_nothing_from_its_child(names):
    """Clauses LIFE-22, MGR-11."""
    parent = {}
    names.register(parent, NAME)
    child = names.inherited(parent)
    names.release_all(parent)
    assert names.candidates == set()
    names.release_all(child)
    assert names.candidates == {NAME}


def test_a_release_without_a_register_takes_nothing_from_others(names):
    holds = {}
    names.register(holds, NAME)
    names.release({}, NAME)
    assert names.usages[NAME].holds == 1


def test_only_names_that_were_held_have_files(names):
    names.register({}, NAME)
    names.announce_counted({}, OTHER)
    assert names.discard(NAME)
    assert not names.discard(OTHER)


def test_a_successor_keeps_the_names_of_the_journal(names):
    """Clause MGR-14."""
    names.register({}, NAME)
    successor = Names()
    successor.keep_known(names.unwritten)
    successor.register_again(holds := {}, OTHER)
    for name in (NAME, OTHER):
        successor.release(holds, name)
    assert successor.candidates == set()
