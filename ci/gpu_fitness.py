"""Checks whether this machine can judge device memory, before anything is judged.

It uses the library of the NVIDIA driver, so that it needs nothing but Python. So an
unfit runner is refused before an environment is made for it. The last check is the
decisive one: a process opens device memory of another process.

Exit status: 0 the machine is fit, 1 memory is missing (`--compare`), 2 the machine is
not fit, with one sentence.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

MIB = 1 << 20
SHARED_MEMORY = 64 * MIB
DESCRIPTORS = 1024
LOCKED = 64 << 10
MEMORY = 256 * MIB
BLOCK = 2 * MIB
SLACK = 8 * MIB
"""How much less memory may be free after a run."""

PATTERN = 0x5EED5EED
HANDLE_BYTES = 64
TIMEOUT = 60.0
GRACE = 10.0
COMPUTE_MODE, UNIFIED_ADDRESSING, EVENT_SUPPORT = 20, 41, 125  # CUdevice_attribute
PROHIBITED, EXCLUSIVE = 2, 3  # CUcomputemode
FIT, NOT_BACK, UNFIT = 0, 1, 2
EMULATED = "sharedtensor_emulated_cuda"  # a function that only the emulated library has


class Unfit(Exception):
    """The machine is not fit; the message is one sentence."""


class Handle(ctypes.Structure):
    """A handle of device memory, which CUDA passes by value."""

    _fields_ = (("data", ctypes.c_char * HANDLE_BYTES),)


class Cuda:
    """The functions of the driver that the checks need; they raise `Unfit`."""

    def __init__(self, library: Any) -> None:
        self.library = library
        status = library.cuInit(0)
        if status:
            raise Unfit(
                f"the NVIDIA driver does not start ({self.name_of(status)}); look at "
                "nvidia-smi, at CUDA_VISIBLE_DEVICES, and at the container's --gpus."
            )

    @classmethod
    def load(cls, emulated: bool = False) -> Cuda:
        """Load the library of the driver, or of the emulated runtime."""
        try:
            library = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise Unfit(
                "there is no NVIDIA driver (no libcuda.so.1); run it on a machine with "
                "a GPU, and give a container the driver (--gpus all)."
            ) from None
        if emulated and not hasattr(library, EMULATED):
            raise Unfit("libcuda.so.1 is that of a real driver; leave --emulated out.")
        if hasattr(library, EMULATED) and not emulated:
            raise Unfit(
                "libcuda.so.1 is that of the emulated runtime, which never counts as "
                "CUDA; take it out of LD_LIBRARY_PATH."
            )
        return cls(library)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library; raises `Unfit` with the driver's error."""
        status = getattr(self.library, name)(*arguments)
        if status:
            raise Unfit(f"{name} failed with {self.name_of(status)}.")

    def name_of(self, status: int) -> str:
        """Return the driver's name of an error."""
        text = ctypes.c_char_p()
        if self.library.cuGetErrorName(status, ctypes.byref(text)) or not text.value:
            return f"CUDA error {status}"
        return text.value.decode()

    def integer(self, name: str, *arguments: Any) -> int:
        """Return the integer that a function writes through its first argument."""
        found = ctypes.c_int()
        self.call(name, ctypes.byref(found), *arguments)
        return found.value

    def title(self, device: int) -> str:
        """Return the name of a device."""
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, len(text), device)
        return text.value.decode(errors="replace")

    def use(self, device: int) -> None:
        """Make the primary context of a device the current one."""
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def memory(self) -> tuple[int, int]:
        """Return free and total bytes of the current device."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, nbytes: int) -> ctypes.c_uint64:
        """Return the address of new memory that holds the pattern."""
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(nbytes))
        words = ctypes.c_size_t(nbytes // 4)
        self.call("cuMemsetD32_v2", pointer, ctypes.c_uint(PATTERN), words)
        self.call("cuCtxSynchronize")
        return pointer

    def first_word(self, pointer: ctypes.c_uint64) -> int:
        """Return the first four bytes of device memory."""
        word = ctypes.c_uint()
        self.call("cuMemcpyDtoH_v2", ctypes.byref(word), pointer, ctypes.c_size_t(4))
        return word.value

    def export(self, pointer: ctypes.c_uint64) -> bytes:
        """Return the handle of memory."""
        handle = Handle()
        self.call("cuIpcGetMemHandle", ctypes.byref(handle), pointer)
        return bytes(handle)

    def open(self, data: bytes) -> ctypes.c_uint64:
        """Open the handle of another process's memory."""
        pointer, handle = ctypes.c_uint64(), Handle.from_buffer_copy(data)
        self.call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), handle, 1)
        return pointer


# The host


def check_shared_memory(folder: str = "/dev/shm") -> str:
    """Check that the folder of shared memory is writable and has space."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Unfit(
            f"{folder} cannot be written ({error.strerror}); mount a tmpfs there."
        ) from None
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if free < SHARED_MEMORY:
        raise Unfit(
            f"{folder} has {free // MIB} MiB free and needs {SHARED_MEMORY // MIB}; "
            "start the container with --shm-size=256m."
        )
    return f"{folder}: {free // MIB} MiB free"


def check_limits(limit_of: Callable[[int], tuple[int, int]] | None = None) -> str:
    """Check that the limits of descriptors and locked memory are high enough."""
    limit_of = limit_of or resource.getrlimit
    said = []
    for name, what, need, option in (
        ("open files", resource.RLIMIT_NOFILE, DESCRIPTORS, "nofile"),
        ("bytes of locked memory", resource.RLIMIT_MEMLOCK, LOCKED, "memlock"),
    ):
        soft, _ = limit_of(what)
        if soft != resource.RLIM_INFINITY and soft < need:
            raise Unfit(
                f"the limit of {name} is {soft} and {need} are needed; raise it, in a "
                f"container with --ulimit {option}={need}."
            )
        said.append(f"{name}: {'any' if soft == resource.RLIM_INFINITY else soft}")
    return ", ".join(said)


# The devices


def cupy_extra(version: int) -> str:
    """Return the extra of this project whose CuPy fits the driver's CUDA version."""
    if version < 12000:
        raise Unfit(
            f"the driver is for CUDA {version // 1000}.{version % 1000 // 10} and CuPy "
            "needs 12; install a newer driver."
        )
    return "cuda13" if version >= 13000 else "cuda12"


def check_devices(cuda: Cuda) -> list[dict[str, Any]]:
    """Check that there is a device, and that several processes can use each."""
    count = cuda.integer("cuDeviceGetCount")
    if not count:
        raise Unfit(
            "the driver shows this process no GPU; give the container one (--gpus all) "
            "and look at CUDA_VISIBLE_DEVICES."
        )
    return [_checked(cuda, index) for index in range(count)]


def _checked(cuda: Cuda, index: int) -> dict[str, Any]:
    device = cuda.integer("cuDeviceGet", index)
    name = cuda.title(device)
    mode = cuda.integer("cuDeviceGetAttribute", COMPUTE_MODE, device)
    if mode in (PROHIBITED, EXCLUSIVE):
        raise Unfit(
            f"the compute mode of GPU {index} ({name}) lets no two processes use it; "
            "ask for: nvidia-smi --compute-mode=DEFAULT."
        )
    for attribute, what in (
        (UNIFIED_ADDRESSING, "no unified addressing"),
        (EVENT_SUPPORT, "no events between processes"),
    ):
        if not cuda.integer("cuDeviceGetAttribute", attribute, device):
            raise Unfit(f"GPU {index} ({name}) has {what}, so it shares no memory.")
    cuda.use(device)
    free, total = cuda.memory()
    if free < MEMORY:
        raise Unfit(
            f"GPU {index} ({name}) has {free // MIB} MiB free and {MEMORY // MIB} are "
            "needed; somebody else is using it."
        )
    emulated = hasattr(cuda.library, EMULATED)
    found = {"name": name, "mig": "MIG" in name, "free": free, "total": total}
    return found | {"emulated": emulated}


def check_sharing(cuda: Cuda, devices: list[dict[str, Any]]) -> None:
    """Check that another process can open memory of this one, on each device."""
    for index, found in enumerate(devices):
        cuda.use(cuda.integer("cuDeviceGet", index))
        pointer = cuda.allocate(BLOCK)
        try:
            _open_elsewhere(cuda.export(pointer), index, found)
        finally:
            cuda.call("cuMemFree_v2", pointer)


def _open_elsewhere(handle: bytes, index: int, found: dict[str, Any]) -> None:
    option = ["--emulated"] if found["emulated"] else []
    command = [sys.executable, __file__, *option, "--open", f"{index}:{handle.hex()}"]
    where = f"on GPU {index} ({found['name']})"
    if found["mig"]:
        where += ", an instance of MIG, which shares memory within one instance only"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unfit(
            f"a second process that opens device memory {where} hangs for "
            f"{TIMEOUT:g} s."
        ) from None
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise Unfit(
            f"a second process cannot open device memory {where}: {said} Sharing has "
            "to be permitted in this container or sandbox: the processes need the same "
            "IPC and PID namespaces (try --ipc=host --pid=host)."
        )


def open_here(argument: str, load: Callable[[], Cuda]) -> None:
    """Run the second process: open the memory and compare its content."""
    index, _, data = argument.partition(":")
    cuda = load()
    cuda.use(cuda.integer("cuDeviceGet", int(index)))
    pointer = cuda.open(bytes.fromhex(data))
    word = cuda.first_word(pointer)
    cuda.call("cuIpcCloseMemHandle", pointer)
    if word != PATTERN:
        raise Unfit(f"the opened memory has {word:#x} and not {PATTERN:#x}.")


# Together


def examine(load: Callable[[], Cuda] = Cuda.load) -> dict[str, Any]:
    """Run all checks; return the facts, or raise `Unfit`."""
    cuda = load()
    host = [check_shared_memory(), check_limits()]
    version = cuda.integer("cuDriverGetVersion")
    extra = cupy_extra(version)
    devices = check_devices(cuda)
    check_sharing(cuda, devices)
    found = {"cuda": version, "extra": extra, "devices": devices, "host": host}
    return found | {"emulated": devices[0]["emulated"]}


def compare(before: dict[str, Any], load: Callable[[], Cuda]) -> str:
    """Return a sentence about memory that is missing after the grace, or ""."""
    cuda = load()
    deadline = time.monotonic() + GRACE
    while lost := _lost(before, _free(cuda, len(before["devices"]))):
        if time.monotonic() > deadline:
            return lost
        time.sleep(0.1)
    return ""


def _free(cuda: Cuda, count: int) -> list[int]:
    found = []
    for index in range(count):
        cuda.use(cuda.integer("cuDeviceGet", index))
        found.append(cuda.memory()[0])
    return found


def _lost(before: dict[str, Any], now: list[int]) -> str:
    for index, (then, free) in enumerate(zip(before["devices"], now, strict=True)):
        missing = then["free"] - free
        if missing > SLACK:
            return (
                f"GPU {index} has {missing} bytes less free than at the start, more "
                f"than the {SLACK} that a context may differ by."
            )
    return ""


class Parser(argparse.ArgumentParser):
    """A parser that reports a usage error in one line, with the status of `Unfit`."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit."""
        self.exit(UNFIT, f"{self.prog}: {message}; see --help.\n")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = Parser(
        prog="gpu_fitness.py",
        description="Check whether this machine can judge device memory.",
        epilog="exit status: 0 the machine is fit, 1 memory is missing (--compare), 2 "
        "the machine is not fit, or a usage error, with one sentence on stderr",
    )
    add = parser.add_argument
    add("--facts", metavar="FILE", help="write the facts as JSON")
    text = "check that as much memory is free as when --facts wrote FILE"
    add("--compare", metavar="FILE", help=text)
    text = "check the emulated runtime instead"
    add("--emulated", action="store_true", help=text)
    add("--open", metavar="INDEX:HANDLE", help=argparse.SUPPRESS)
    return parser


def main(
    arguments: list[str] | None = None, load: Callable[[], Cuda] | None = None
) -> int:
    """Run the checks; return the exit status."""
    options = build_parser().parse_args(arguments)
    load = load or functools.partial(Cuda.load, options.emulated)
    try:
        if options.open:
            open_here(options.open, load)
            return FIT
        if options.compare:
            return _compare(options, load)
        facts = examine(load)
        if options.facts:
            Path(options.facts).write_text(json.dumps(facts))
    except (Unfit, OSError, ValueError) as error:
        start = "" if options.open else "This runner is not fit for the GPU gate: "
        print(f"{start}{error}", file=sys.stderr)
        return UNFIT
    print(_told(facts))
    return FIT


def _compare(options: argparse.Namespace, load: Callable[[], Cuda]) -> int:
    before = json.loads(Path(options.compare).read_text())
    lost = compare(before, load)
    print(lost or "The device memory is back at its starting figure.")
    return NOT_BACK if lost else FIT


def _told(facts: dict[str, Any]) -> str:
    version = facts["cuda"]
    lines = [f"CUDA of the driver: {version // 1000}.{version % 1000 // 10}"]
    if facts["emulated"]:
        lines = ["The emulated runtime, which never counts as CUDA.", *lines]
    for index, found in enumerate(facts["devices"]):
        instance = " (an instance of MIG)" if found["mig"] else ""
        free, total = found["free"] // MIB, found["total"] // MIB
        lines.append(f"GPU {index}: {found['name']}{instance}, {free}/{total} MiB free")
    return "\n".join([*lines, *facts["host"], "Two processes can share device memory."])


if __name__ == "__main__":
    sys.exit(main())
