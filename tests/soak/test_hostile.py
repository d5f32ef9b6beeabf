"""A hostile environment in miniature: what holds, and a reference that is broken."""

import re
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "reference" / "sharedtensor"
WALL_CLOCK = re.compile(r"\btime\.time\b|\bdatetime\b|CLOCK_REALTIME|\.st_[acm]time")


def test_an_episode_on_the_reference_holds(run, needs):
    needs("another /dev/shm", "no processes", "no memory")
    done = run("hostile.py", "--only=5", "--hold=0.1")
    assert done.record["hardships"] == {
        "the end of the container": 1,
        "no descriptors": 1,
        "another /dev/shm": 1,
        "everybody is stopped": 1,
    }
    assert set(done.record["errors"]) <= {"ResourceError", "HandleError"}
    assert done.record["errors"]["ResourceError"] > 0


def test_each_hardship_is_met_by_some_episode(scripts):
    import hostile

    drawn = [hostile.drawn(1, number, {}) for number in range(60)]
    assert drawn == [hostile.drawn(1, number, {}) for number in range(60)]
    assert {name for _, chosen in drawn for name in chosen} == set(hostile.HARDSHIPS)
    for plan, chosen in drawn:
        assert plan.is_managed or not set(chosen) & set(hostile.NEEDS_MANAGER)


def test_what_is_impossible_is_not_done(scripts):
    import hostile

    impossible = {"no memory": "no control group for memory can be made"}
    drawn = [hostile.drawn(1, number, impossible) for number in range(60)]
    assert not any("no memory" in chosen for _, chosen in drawn)


def test_the_reference_reads_no_wall_clock():
    """So nothing in it depends on a clock that somebody sets."""
    found = [
        f"{path.name}: {line}"
        for path in SOURCES.rglob("*.py")
        for line in path.read_text().splitlines()
        if WALL_CLOCK.search(line)
    ]
    assert found == []
