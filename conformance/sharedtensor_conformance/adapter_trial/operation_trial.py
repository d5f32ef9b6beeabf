"""Calls the operations of profile ``core`` once, to find mistakes in the adapter.

The trial uses one process and one tensor, before anything is judged, so that the author
of the adapter gets a clear message about a mistake. `decode` needs a second process and
is left to the smoke test. If the profile ``share`` is claimed, `share` is called too,
because it may be what makes a file in ``/dev/shm``.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.adapter_trial.segment_trial import SegmentTrial
from sharedtensor_conformance.sanitize import first_line, printable

VALUES = [1, 0, 1]
SHOWN_CHARACTERS = 80  # characters of a result that is not as it has to be


def problems_of_calls(implementation: Implementation, operations: Any) -> list[str]:
    """Return the problems of the results of `operations`, one sentence for each.

    Nothing is tried if ``cpu`` is not among the devices.
    """
    if "cpu" not in implementation.devices:
        return []
    trial = _Trial(operations)
    dtype = implementation.dtypes[0]
    trial.call("enter_child", implementation.strategies[0])
    segments = SegmentTrial(implementation.segment_pattern)
    tensor = trial.call("make", VALUES, (len(VALUES),), dtype)
    if trial.problems:
        return trial.problems  # there is nothing to try the others on
    trial.expect((3,), "shape", tensor)
    trial.expect(dtype, "dtype", tensor)
    trial.expect(VALUES, "values", tensor)
    trial.expect(1, "read", tensor, (2,))
    trial.call("write", tensor, (1,), 1)
    if not trial.problems:
        trial.expect([1, 1, 1], "values", tensor, after=" after a write of 1 to [1]")
    message = trial.call("encode", tensor)
    if not trial.problems:
        trial.expect(True, "is_tensor", message, after=" of what `encode` returned")
    segments.look()
    if "share" in implementation.claims:
        shared = trial.call("share", tensor)  # what it returns stays for the look
        segments.look()
        del shared
    trial.call("release", tensor)
    return trial.problems + segments.problems()


class _Trial:
    """The operations of an adapter, and the problems found so far."""

    def __init__(self, operations: Any) -> None:
        self.operations = operations
        self.problems: list[str] = []

    def call(self, name: str, *arguments: object) -> Any:
        """Return the result of an operation; what it raises is a problem."""
        try:
            return getattr(self.operations, name)(*arguments)
        except BaseException as error:  # it may call `sys.exit`
            self.problems.append(
                f"the operation {name!r} raised {first_line(error)}"
                f"{self._place(error)}: change it so that it works with your package"
            )
            return None

    def expect(
        self, expected: object, name: str, *arguments: object, after: str = ""
    ) -> None:
        """Call an operation; a result that is not `expected` is a problem."""
        before = len(self.problems)
        found = self.call(name, *arguments)
        if len(self.problems) > before:
            return
        try:
            same = bool(found == expected)
        except Exception:  # it compares in its own way
            same = False
        if not same:
            shown = printable(repr(found))[:SHOWN_CHARACTERS]
            self.problems.append(
                f"the operation {name!r} returned {shown}{after}; expected {expected!r}"
            )

    def _place(self, error: BaseException) -> str:
        """Return the last place in the adapter's own module on the way to an error."""
        module = sys.modules.get(type(self.operations).__module__)
        own = getattr(module, "__file__", None)
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == own]
        return f" ({own}, line {lines[-1]})" if lines else ""
