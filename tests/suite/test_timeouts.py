"""How long answers are waited for, where others were waited for in vain."""

from sharedtensor_conformance.harness.timeouts import SHORT_ANSWER_TIMEOUT, Timeouts


def shortened(declared):
    made = Timeouts(answer=declared, start=90.0, cleanup=3.0)
    made.shorten()
    return made


def test_answer_is_waited_for_less():
    assert shortened(20.0).answer == SHORT_ANSWER_TIMEOUT


def test_no_answer_is_waited_for_longer_than_is_declared():
    assert shortened(2.0).answer == 2.0


def test_answer_is_waited_for_as_long_as_is_declared_again():
    made = shortened(20.0)
    made.restore()
    assert made.answer == 20.0
