"""Finds the GPUs, the driver, the runtimes and the libraries of this environment.

A verdict on device memory depends on all of these, so a report names them. They are
found in a separate process that ends at once, because a process that has used CUDA
cannot fork any more. Unknown facts are empty and do not prevent judging.

    python cuda_facts.py

prints them as JSON. The file uses only the standard library, so that any interpreter
can run it.
"""

from __future__ import annotations

import ctypes
import json
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

TIMEOUT = 60.0
"""Seconds for the answer; a driver that takes longer is judged without its facts."""

EMULATED_SYMBOL = "sharedtensor_emulated_cuda"  # what the emulated library alone has
DRIVER_VERSION_FILE = "/sys/module/nvidia/version"
LIBRARIES = ("cupy", "cupy-cuda12x", "cupy-cuda13x", "torch")


def facts_of(python: str = sys.executable) -> dict[str, Any] | None:
    """Return the facts that an interpreter finds, or None where it tells none."""
    command = [python, __file__]
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT, check=True)
        facts: dict[str, Any] | None = json.loads(done.stdout)
        return facts
    return None


def facts() -> dict[str, Any] | None:
    """Return what this process finds; None without a driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    emulated = hasattr(library, EMULATED_SYMBOL)
    return {
        "emulated": emulated,
        "driver": "" if emulated else _driver_version(),
        "cuda": _version_text(_integer(library, "cuDriverGetVersion")),
        "runtimes": {name: found for name, found in _runtimes() if found},
        "libraries": dict(_libraries()),
        "gpus": list(_gpus(library)),
    }


def _driver_version() -> str:
    with suppress(OSError):
        return Path(DRIVER_VERSION_FILE).read_text().strip()
    return ""


def _integer(library: Any, function: str, *arguments: Any) -> int:
    found = ctypes.c_int()
    failed = getattr(library, function)(ctypes.byref(found), *arguments)
    return 0 if failed else found.value


def _version_text(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}" if version else ""


def _gpus(library: Any) -> Iterator[dict[str, Any]]:
    if library.cuInit(0):
        return
    for index in range(_integer(library, "cuDeviceGetCount")):
        device = _integer(library, "cuDeviceGet", index)
        name, size = ctypes.create_string_buffer(256), ctypes.c_size_t()
        library.cuDeviceGetName(name, len(name), device)
        library.cuDeviceTotalMem_v2(ctypes.byref(size), device)
        title = name.value.decode(errors="replace")
        yield {"name": title or "unnamed", "mib": size.value >> 20}


def _libraries() -> Iterator[tuple[str, str]]:
    for name in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            yield name, metadata.version(name)


def _runtimes() -> Iterator[tuple[str, str]]:
    """Yield for which CUDA the runtime is that each library brings."""
    with suppress(Exception):  # whatever is wrong with a library is told by its cases
        runtime = import_module("cupy.cuda").runtime
        yield "cupy", _version_text(runtime.runtimeGetVersion())
    with suppress(Exception):
        yield "torch", _torch_runtime()


def _torch_runtime() -> str:
    """Read it from a file, since the import of torch takes seconds."""
    if (found := find_spec("torch")) and found.origin:
        version = Path(found.origin).with_name("version.py")
        return str(runpy.run_path(str(version))["cuda"] or "")
    return ""


if __name__ == "__main__":
    print(json.dumps(facts()))
