"""The conformance suite: judges libraries that share tensors between processes.

Run it with ``pytest --pyargs sharedtensor_conformance --impl=NAME``, or call
:func:`run_conformance` in a test of your project.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["run_conformance"]
__version__ = "0.1.0"


def run_conformance(implementation: str, *options: str | Sequence[str]) -> None:
    """Run the suite on `implementation`; raise if it does not conform.

    The suite runs in a separate process, so that the pytest settings and plugins of the
    caller do not affect it.

    Args:
        implementation: the value of ``--impl``.
        options: more options of the suite, for example ``"--profile=core"``.

    Raises:
        AssertionError: a MUST of a claimed profile is broken or was not judged; the
            message contains the output of the suite.
        ValueError: the options are wrong (exit status 4 of the suite).
    """
    # Imported here because every process of the suite imports this package.
    from sharedtensor_conformance.api import run

    run(implementation, *options)
