"""Runs one class of CPython's own tests of multiprocessing, for `cpython_tests.py`.

    CPYTHON_TESTS_METHOD=spawn python cpython_class.py CLASS FILE

Each test writes a line of JSON to FILE when it begins and when it ends, so that the
name of a test is known if it hangs or ends the process. With ``--list`` in place of
CLASS, the script writes the classes and their tests. `cpython_tests.py` has put the
modules `installed_tests` and `_test_multiprocessing` on the path, because spawned
children import them, too.
"""

from __future__ import annotations

import json
import signal
import sys
import unittest
from pathlib import Path
from typing import Any, TextIO

LIST = "--list"


class Recorder(unittest.TestResult):
    """Writes the outcome of each test as soon as it is known.

    An expected failure counts as a pass.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.out = stream
        self.outcome = ""
        self.text = ""

    def write(self, test: unittest.TestCase, outcome: str, text: str = "") -> None:
        """Write one line, and flush it."""
        line = {"test": name_of(test), "outcome": outcome, "text": text}
        self.out.write(json.dumps(line) + "\n")
        self.out.flush()

    def startTest(self, test: unittest.TestCase) -> None:
        """Write that a test begins."""
        super().startTest(test)
        self.outcome, self.text = "pass", ""
        self.write(test, "began")

    def stopTest(self, test: unittest.TestCase) -> None:
        """Write the outcome of a test."""
        super().stopTest(test)
        self.write(test, self.outcome, self.text)

    def addError(self, test: Any, error: Any) -> None:
        """Note an error; an error outside a test (`setUpClass`) is written at once."""
        super().addError(test, error)
        self._note("error", error)
        if not isinstance(test, unittest.TestCase):
            self.write(test, "error", self.text)

    def addFailure(self, test: Any, error: Any) -> None:
        """Note a failure."""
        super().addFailure(test, error)
        self._note("fail", error)

    def addSubTest(self, test: Any, subtest: Any, error: Any) -> None:
        """Note the failure of a part of a test."""
        super().addSubTest(test, subtest, error)
        if error is not None:
            self._note("fail", error)

    def addSkip(self, test: Any, reason: str) -> None:
        """Note a skip; the skip of a class is a skip of each of its tests."""
        super().addSkip(test, reason)
        self.outcome, self.text = "skip", reason

    def addUnexpectedSuccess(self, test: Any) -> None:
        """Note an unexpected success, which counts as a failure."""
        super().addUnexpectedSuccess(test)
        self.outcome, self.text = "fail", "it was expected to fail"

    def _note(self, outcome: str, error: Any) -> None:
        kind, raised, _ = error
        lines = str(raised).strip().splitlines() or [""]
        self.outcome, self.text = outcome, f"{kind.__name__}: {lines[0]}"


def name_of(test: Any) -> str:
    """Return ``Class.test``, or the description if `test` is not a test."""
    if isinstance(test, unittest.TestCase):
        return f"{type(test).__name__}.{test._testMethodName}"
    return str(test)


def classes(module: Any) -> dict[str, type[unittest.TestCase]]:
    """Return the classes of tests by name, without those that only use threads.

    Tests of `multiprocessing.dummy` have no processes, so a drop-in changes nothing.
    """
    return {
        name: found
        for name, found in vars(module).items()
        if isinstance(found, type)
        and issubclass(found, unittest.TestCase)
        and not name.startswith("WithThreads")
    }


def main(chosen: str, file: Path) -> None:
    """List the tests, or run those of one class."""
    import installed_tests

    loader = unittest.TestLoader()
    found = classes(installed_tests)
    with file.open("w", encoding="utf-8") as stream:
        if chosen == LIST:
            listed = {
                name: list(loader.getTestCaseNames(each))
                for name, each in found.items()
            }
            json.dump(listed, stream)
        else:
            suite = unittest.TestSuite([loader.loadTestsFromTestCase(found[chosen])])
            suite.run(Recorder(stream))


if __name__ == "__main__":
    # A background process of a shell ignores SIGINT, but tests interrupt themselves.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(sys.argv[1], Path(sys.argv[2]))
