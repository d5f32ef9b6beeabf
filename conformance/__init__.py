"""The conformance suite: judges any implementation of shared-tensor multiprocessing.

Run it with ``pytest --pyargs sharedtensor_conformance --impl=NAME``, or from a test of
one's own with :func:`run_conformance`.
"""

from sharedtensor_conformance.embedding import run_conformance

__all__ = ["run_conformance"]
__version__ = "0.1.0"
