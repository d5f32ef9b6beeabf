"""All soak runs at once, for seconds: what holds, and a subject that is broken."""

import time

import pytest

SHORT = ("--minutes=0.02", "--every=50", "--only=hostile")


@pytest.fixture
def mixed(scripts, monkeypatch):
    """Run with turns that are short; return the status and the record."""
    import mixed

    def run_mixed(turn, *options):
        monkeypatch.setitem(mixed.TURNS, "hostile", turn)
        record = {}
        sentence = mixed.work(mixed.options().parse_args([*SHORT, *options]), record)
        return sentence, record

    return run_mixed


def test_what_is_watched_goes_on_beside_the_turns(mixed):
    sentence, record = mixed(("--episodes=1", "--hold=0.1"))
    assert "beside 1 turn (1 of hostile environments); all held." in sentence
    assert set(record["watched"]) == {"file_descriptor", "file_system"}
    for found in record["watched"].values():
        assert found["rounds"] >= found["every"] == found["samples"]["round"][0]
    assert [turn["script"] for turn in record["turns"]] == ["hostile"]


def test_the_sentence_names_the_turns_that_there_were_and_no_other(scripts):
    import mixed

    turns = [{"script": script} for script in ("kills", "loaded", "kills")]
    assert mixed.in_words(turns) == "3 turns (2 of kills, 1 of the suite)"
    assert set(mixed.IN_WORDS) == set(mixed.TURNS)


def test_a_turn_that_does_not_hold_ends_the_run_long_before_its_time(mixed):
    from records import NotHeld

    began = time.monotonic()
    with pytest.raises(NotHeld, match=r"--no-such-option.* ended with status 4"):
        mixed(("--no-such-option",), "--minutes=10")
    assert time.monotonic() - began < 300


def test_what_is_watched_and_broken_is_the_finding(mixed):
    from records import NotHeld

    with pytest.raises(NotHeld, match=r"rounds\.py .*: .*without its grad"):
        mixed(("--episodes=1", "--hold=0.1"), "--mutant=drops_grad")
