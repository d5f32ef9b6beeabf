"""Under xdist one worker runs a whole batch, and what runs last at its end."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

SHARING = "test_share.py::test_receiver_finds_values_shape_and_dtype*"
LAST = "test_ledger.py::test_nothing_is_left_of_what_the_cases_dropped*"
CHOSEN = (f"--case={SHARING}", f"--case={LAST}")
RAN = re.compile(r"^\[(gw\d)\] .* \S*?(test_\w+\.py::\w+\[\S+\])", re.MULTILINE)


def run_in_batches(suite, *options):
    """Run a configuration on two workers; its cases are said to take long."""
    slow = suite.folder / "slow.jsonl"
    report = suite(*options).file.read_text()
    slow.write_text(re.sub(r'"seconds":\s*[\d.]+', '"seconds": 5.0', report))
    return suite(*options, "-n2", "-vv", f"--timings={slow}")


def test_each_batch_ends_with_what_runs_last_and_its_leak_breaks_the_one_case(suite):
    leaking = (
        "--impl=leaks:one_by_each_channel", "--strategy=descriptor", "--no-repetition",
    )  # fmt: skip
    done = run_in_batches(suite, *leaking, *CHOSEN)
    order = defaultdict(list)
    for worker, case in RAN.findall(done.text):
        order[worker].append(case.partition("::")[0])
    assert len(order) == 2, done.text
    ran = Counter(module for modules in order.values() for module in modules)
    assert (ran["test_share.py"], ran["test_ledger.py"]) == (6, 4), done.text
    for modules in order.values():
        assert re.fullmatch("(s+l)+", "".join(name[5] for name in modules))
    # In the report it is one case, as bad as in the worst batch.
    cases = Counter(case.test for case in done.cases)
    assert cases == {SHARING[:-1]: 6, LAST[:-1]: 1}
    (case,) = (case for case in done.cases if case.test == LAST[:-1])
    assert case.verdict == "fail"
    assert "peer has 1 more descriptor" in case.evidence
    assert "1 failed, 6 passed" in done.text
    assert done.report.summary.exit_status == done.status == 1
