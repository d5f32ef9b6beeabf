"""The conformance suite: judges libraries whose tensors can be shared and written.

Run it with ``pytest --pyargs sharedtensor_conformance --impl=NAME``, or from a test of
one's own with :func:`run_conformance`.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["run_conformance"]
__version__ = "0.1.0"


def run_conformance(implementation: str, *options: str | Sequence[str]) -> None:
    """Run the suite on `implementation`; raise if it does not conform.

    It runs in a process of its own, so the caller's pytest settings and plugins do not
    matter.

    Args:
        implementation: what ``--impl`` takes.
        options: more options of the suite, such as ``"--profile=core"``.

    Raises:
        AssertionError: a MUST of a claimed profile is broken or was not judged; the
            message is what the suite printed.
        ValueError: the options are wrong (exit status 4).
    """
    # Here, since every process of the suite imports this package.
    from sharedtensor_conformance.api import run

    run(implementation, *options)
