"""What stays is waited for once; what is new is found, and what goes is not accepted.

The ledger is a list of readings here, and the clock is the real one.
"""

from __future__ import annotations

import time
from copy import deepcopy

import pytest
from sharedtensor_conformance.harness.ledger import leaks
from sharedtensor_conformance.harness.ledger.leaks import (
    SHORT_WAIT,
    Growth,
    Leaks,
    LeakWaits,
)
from sharedtensor_conformance.harness.ledger.ledger import kind
from sharedtensor_conformance.harness.ledger.stage_ledger import Baseline, Holdings

WITHIN = 0.5


def reading(segments=(), **targets):
    """Return a reading of one process with so many descriptors of each kind."""
    held = {
        "command": "python",
        "descriptors": sum(targets.values()),
        "targets": targets,
        "mappings": 0,
        "mapped": {},
        "files_open": [],
        "files_mapped": [],
        "threads": 1,
    }
    return {"processes": {"7": held}, "segments": list(segments), "files": []}


class Ledger:
    """It shows what a test has put there."""

    def __init__(self, **targets):
        self.now = reading(**targets)

    def read(self):
        return deepcopy(self.now)


@pytest.fixture
def ledger():
    return Ledger(memfd=1)


@pytest.fixture
def baseline(ledger):
    made = Baseline(ledger, lambda: {7: "peer"})
    made.take()
    return made


@pytest.fixture
def waits(monkeypatch):
    """Waits that are not prolonged where the machine is overloaded."""
    monkeypatch.setattr(leaks, "prolonged", lambda limit: limit)
    return LeakWaits()


def waited(waits, look, within=WITHIN):
    started = time.monotonic()
    growth = waits.wait(look, within)
    return growth, time.monotonic() - started


def leak(**targets):
    """Return a look that finds the same each time."""
    growth = Growth()
    held = reading(**targets)["processes"]["7"]
    growth.add_process("peer", held, reading()["processes"]["7"])
    return lambda: deepcopy(growth)


def test_what_stays_is_waited_for_once(waits):
    first, long = waited(waits, leak(memfd=1))
    again, short = waited(waits, leak(memfd=4))
    assert (first.known, again.known) == (False, True)
    assert long >= WITHIN
    assert SHORT_WAIT <= short < WITHIN


def test_another_kind_of_leak_is_waited_for_and_found(waits):
    waited(waits, leak(memfd=1))
    for look in (leak(pipe=1), leak(memfd=1, pipe=1)):
        growth, long = waited(waits, look, WITHIN / 2)
        assert long >= WITHIN / 2
        assert "pipe" in str(growth)
        assert not growth.known


def test_a_longer_wait_is_not_spared_by_a_shorter_one(waits):
    waited(waits, leak(memfd=1), WITHIN / 2)
    growth, long = waited(waits, leak(memfd=1), WITHIN)
    assert long >= WITHIN
    assert not growth.known


def slowly_back(seconds, **targets):
    """Return a look that finds a leak for so many seconds."""
    look, ready = leak(**targets), time.monotonic() + seconds
    return lambda: look() if time.monotonic() < ready else Growth()


def test_what_is_known_to_stay_gets_the_time_that_its_kind_took(waits):
    slow = 0.3
    growth, _ = waited(waits, slowly_back(slow, memfd=1))
    assert not growth
    waited(waits, leak(memfd=1), 2.0)
    _, short = waited(waits, leak(memfd=1), 2.0)
    assert 2 * slow <= short < 2.0


def test_another_kind_that_took_its_time_delays_nothing(waits):
    waited(waits, slowly_back(0.4, pipe=1), 2.0)
    waited(waits, leak(memfd=1))
    _, short = waited(waits, leak(memfd=1))
    assert short < WITHIN


def test_what_comes_back_is_no_leak_though_its_kind_is_known(waits):
    waited(waits, leak(memfd=1))
    looks = iter([leak(memfd=1)(), Growth()])
    growth, _ = waited(waits, lambda: next(looks))
    assert not growth


def test_what_confirms_a_failure_is_waited_for_in_full(waits):
    waited(waits, leak(memfd=1))
    with waits.in_full():
        growth, long = waited(waits, leak(memfd=1))
    assert long >= WITHIN
    assert not growth.known
    _, short = waited(waits, leak(memfd=1))
    assert short < WITHIN


def test_growth_names_kind_and_target():
    growth = leak(**{"/memfd:a": 2, "socket": 1})()
    assert str(growth) == "peer has 3 more descriptors (2 x /memfd:a, 1 x socket)"
    growth.waited = 3.02
    said = "not back after 3 s: peer has 3 more descriptors (2 x /memfd:a, 1 x socket)"
    assert str(growth.failure()) == said
    assert Growth().failure() is None


def test_accepted_leak_is_not_found_again(ledger, baseline):
    ledger.now = reading(memfd=2)
    assert str(baseline.growth()) == "peer has 1 more descriptor (1 x memfd)"
    baseline.accept()
    assert not baseline.growth()


def test_leak_in_the_place_of_one_that_has_gone_is_found(ledger, baseline):
    ledger.now = reading(memfd=2)
    baseline.accept()
    ledger.now = reading(memfd=1)
    assert not baseline.growth()
    ledger.now = reading(memfd=1, pipe=1)
    assert str(baseline.growth()) == "peer has 1 more descriptor (1 x pipe)"


def test_what_closes_one_of_its_own_may_open_it_again(ledger, baseline):
    ledger.now = reading()
    assert not baseline.growth()
    ledger.now = reading(memfd=1)
    assert not baseline.growth()


def test_process_that_stayed_is_compared_with_itself(ledger, baseline):
    ledger.now["processes"]["8"] = reading(memfd=1)["processes"]["7"]
    assert str(baseline.growth()) == "the process 8 (python) is there"
    baseline.accept()
    assert not baseline.growth()
    ledger.now["processes"]["8"] = reading(memfd=2)["processes"]["7"]
    assert str(baseline.growth()) == "8 (python) has 1 more descriptor (1 x memfd)"


def test_holdings_count_segments_by_number_and_name_the_new_ones():
    names = {7: "peer"}
    before = Holdings(reading(["a"]), names)
    assert not Holdings(reading(["b"]), names).growth_since(before)
    now = Holdings(reading(["a", "b"], memfd=1), names)
    assert str(now.growth_since(before)) == (
        "the segment b is left; peer has 1 more descriptor (1 x memfd)"
    )


def test_finding_lists_each_case_once_and_repeats_one_of_each_kind():
    leaks = Leaks()
    for case in ("a", "b", "a"):
        leaks.note(case, leak(memfd=1)(), failed=case == "b")
    leaks.note("c", leak(pipe=1)())
    leaks.note("", leak(pipe=1)())
    failure = leaks.failure("LIFE-7")
    assert failure.cases == ("a", "c")
    assert str(failure).splitlines() == [
        "not back after 0 s: peer has 1 more descriptor (1 x memfd), after 2 cases:",
        "  a",
        "  b, which failed",
        "not back after 0 s: peer has 1 more descriptor (1 x pipe), after 2 cases:",
        "  c",
        "  the messages of this test",
    ]
    assert leaks.failure("LIFE-12") is None


def test_long_finding_is_cut():
    leaks = Leaks()
    for number in range(20):
        leaks.note(f"case {number}", leak(memfd=1)())
    assert str(leaks.failure("LIFE-7")).endswith("  case 7\n  and 12 more")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("socket:[12]", "socket"),
        ("anon_inode:[eventfd]", "eventfd"),
        ("/memfd:sharedtensor (deleted)", "/memfd:sharedtensor"),
        ("/dev/shm/torch_21_3568_7", "/dev/shm/torch_*_*_*"),
        ("/dev/shm/sharedtensor-21-0123456789abcdef", "/dev/shm/sharedtensor-*-*"),
        ("/run/sts-x1/t/tmpabcd_x1y", "TMPDIR/tmp*"),
        ("/dev/shm/pym-3568-jcff_2h9", "/dev/shm/pym-*"),
        ("/dev/null", "/dev/null"),
        ("/dev/shm/sem.IL12zM (deleted)", "/dev/shm/sem.*"),
        ("/dev/shm/sem.mp-abcdefgh", "/dev/shm/sem.*"),
        ("sem.abcdef", "sem.*"),
        ("psm_1a2b3c4d", "psm_*"),
        ("/dev/shm/psm_abcdefab", "/dev/shm/psm_*"),
        ("torch-shm-dir-cRC4Xi/manager.sock", "torch-shm-dir-*/manager.sock"),
        ("torch-shm-dir-AbalHZ", "torch-shm-dir-*"),
        ("pymp-l_ks2u1z/listener-jgwjjxrq", "pymp-*/listener-*"),
        ("pytorch-errorfile-imy_4js5.pickle", "pytorch-errorfile-*.pickle"),
        ("/usr/lib/libc-2.31.so", "/usr/lib/libc-*.*.so"),
        ("12 (torch_shm_manager)", "* (torch_shm_manager)"),
        ("/memfd:of_nobody-known.here", "/memfd:of_nobody-known.here"),
    ],
)
def test_kind_of_a_target_has_nothing_particular(name, expected):
    assert kind(name) == expected
