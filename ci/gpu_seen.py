"""Checks whether an implementation can use a device in this environment.

    python gpu_seen.py IMPLEMENTATION DEVICE

Exit status: 2 if the implementation says that it cannot, with a sentence on stdout; 0
otherwise. The suite reports other problems of an adapter.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib.util import find_spec


def why_not(name: str, device: str) -> str:
    """Return a sentence why a device cannot be used; empty if it can."""
    if find_spec("sharedtensor_conformance") is None:
        return f"{sys.executable} has no sharedtensor_conformance; install it there."
    from sharedtensor_conformance.adapters import loader

    with suppress(Exception):
        adapter = loader.load_implementation(name)
        if "cuda" not in adapter.claims or device not in adapter.devices:
            return ""
        operations = loader.load_operations(name)
        said = str(operations.device_unavailable(device)).rstrip(".")
        return said and f"{name} cannot see the device: {said}."
    return ""


if __name__ == "__main__":
    found = why_not(*sys.argv[1:3])
    print(found)
    sys.exit(2 if found else 0)
