"""Implementations that misbehave: what the harness has to survive.

None of them deletes or signals anything that it cannot name exactly: a path that is
worked out may turn out to be ``/``, and a parent may be somebody else's. All but one
are the plain miniature, which copies, with one thing done to the process it is in.
`WARD` in the environment is a folder for what has to be known across processes.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import multiprocessing
import os
import re
import resource
import signal
import socket
import sys
import tempfile
import threading
from dataclasses import replace
from multiprocessing.synchronize import SemLock
from pathlib import Path

import miniatures
from sharedtensor_conformance.adapters import reference
from sharedtensor_conformance.adapters.numpy_copy import StridedArray

DESCRIBED = "SHAREDTENSOR_CONFORMANCE_DESCRIBE" in os.environ
USED_BY_THE_SUITE = [1, 0, 1]
"""What ladder, warming and closing tests send: tests of clauses send other values."""

adapters = {}


def patient(base=miniatures.plain, **fields):
    """Register an adapter under its class's name; `fields` are the adapter's."""

    def register(operations):
        where = f"{__name__}:{operations.__name__}"
        named = {"name": operations.__name__, "operations": where}
        named |= {"start_methods": ("fork",)} | fields
        adapters[operations.__name__] = replace(base, **named)
        return operations

    return register


def __getattr__(name):
    """Return the adapter of a patient: ``--impl=patients:crashes_in_make``."""
    try:
        return adapters["".join(part.title() for part in name.split("_"))]
    except KeyError:
        raise AttributeError(name) from None


def ward():
    return Path(os.environ["WARD"])


def die():
    faulthandler.disable()
    os.kill(os.getpid(), signal.SIGSEGV)


def hang():
    threading.Event().wait()


def signal_keeper(number):
    """Signal the parent, and only if it is a supervisor: else it is an orphan's."""
    parent = os.getppid()
    if b"harness/supervisor.py" in Path(f"/proc/{parent}/cmdline").read_bytes():
        os.kill(parent, number)


def in_a_peer():
    return multiprocessing.parent_process() is not None


def after_the_ladder():
    """Tell whether an owner was here before this one, who counts as one."""
    marks = ward() / "owners"
    before = marks.read_text() if marks.exists() else ""
    with marks.open("a") as file:
        file.write(f"{os.getpid()}\n")
    return bool(before)


class Fits:
    """Calls `fit` where a test of a clause makes a tensor."""

    def make(self, values, shape, dtype):
        if list(values) != USED_BY_THE_SUITE:
            self.fit()
        return super().make(values, shape, dtype)

    def fit(self):
        """Do nothing."""


class Patient(Fits, miniatures.Plain):
    """The plain miniature that has fits."""


def usual(tensor):
    return tensor.ravel().tolist() == USED_BY_THE_SUITE


@patient()
class Well(miniatures.Plain):
    """Nothing is wrong with it but that it copies."""


# Crashes and hangs, at each place


@patient()
class CrashesAtImport(miniatures.Plain):
    def __init__(self):
        if not DESCRIBED:
            os.abort()


@patient(patience=4.0)
class HangsAtImport(miniatures.Plain):
    def __init__(self):
        if not DESCRIBED:
            hang()


@patient()
class CrashesInAChild(miniatures.Plain):
    def enter_child(self, strategy):
        if in_a_peer():
            die()


@patient(patience=5.0)
class HangsInAChild(miniatures.Plain):
    def enter_child(self, strategy):
        if in_a_peer():
            hang()


@patient()
class CrashesLater(miniatures.Plain):
    """The ladder is climbed; no later owner comes up."""

    def enter_child(self, strategy):
        if not in_a_peer() and after_the_ladder():
            os._exit(7)


@patient()
class CrashesInMake(Patient):
    def fit(self):
        die()


@patient()
class HangsInMake(Patient):
    def fit(self):
        hang()


@patient(deadline=1000.0)
class NeverLate(Patient):
    """It hangs, and a request may take longer than any run."""

    def fit(self):
        (ward() / "hangs").touch()
        hang()


class Crashing:
    def __reduce__(self):
        die()


class Hanging:
    def __reduce__(self):
        hang()


class Substituting(Patient):
    """Sends something else in the place of the tensor of a test."""

    substitute: type

    def encode(self, tensor):
        return tensor if usual(tensor) else self.substitute()


@patient()
class CrashesInTheReducer(Substituting):
    substitute = Crashing


@patient(channels=("queue",))
class CrashesInTheThreadOfAQueue(Substituting):
    """Nobody talks to the process that dies: the other one waits for its message."""

    substitute = Crashing


@patient()
class HangsInTheReducer(Substituting):
    substitute = Hanging


@patient()
class CrashesInDecode(Patient):
    def decode(self, message):
        if not usual(message):
            os._exit(9)
        return message


@patient()
class HangsInDecode(Patient):
    def decode(self, message):
        if not usual(message):
            hang()
        return message


@patient()
class HangsInRelease(Patient):
    def release(self, tensor):
        if not usual(tensor):
            hang()


@patient()
class HangsAtExit(miniatures.Plain):
    def enter_child(self, strategy):
        atexit.register(hang)


@patient()
class LeavesAThreadAtExit(miniatures.Plain):
    def enter_child(self, strategy):
        threading.Thread(target=hang).start()


@patient()
class StopsItself(Patient):
    def fit(self):
        os.kill(os.getpid(), signal.SIGSTOP)


@patient()
class EndsItsMainThread(Patient):
    """The process lives on in a thread, and /proc calls it a zombie."""

    def fit(self):
        threading.Thread(target=hang).start()
        ctypes.CDLL(None).pthread_exit(None)


@patient()
class IgnoresSigterm(Patient):
    def enter_child(self, strategy):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def fit(self):
        hang()


# What is done to the suite


@patient()
class StopsItsKeeper(Patient):
    def fit(self):
        signal_keeper(signal.SIGSTOP)
        (ward() / "stopped").touch()


@patient()
class KillsItsKeeper(Patient):
    def fit(self):
        signal_keeper(signal.SIGKILL)


@patient()
class ClosesDescriptors(Patient):
    def fit(self):
        os.closerange(3, 256)


@patient()
class WritesIntoEverySocket(Patient):
    def fit(self):
        for fd in range(3, 256):
            try:
                os.write(fd, b"\xff" * 64)
            except OSError:
                continue


@patient()
class ChangesTheProcess(Patient):
    def fit(self):
        os.chdir("/")
        os.umask(0o777)
        os.makedirs(tempfile.mkdtemp() + "/locked/inner")
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
        for number in set(range(1, 32)) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)


@patient()
class ReplacesItsStreams(Patient):
    def fit(self):
        sys.stdout = sys.stderr = sys.stdin = None


@patient()
class FloodsItsStreams(Patient):
    def fit(self):
        for _ in range(30):
            os.write(1, b"\xff" * (1 << 19) + b"\n")
            os.write(2, b"\xfe" * (1 << 19) + b"\n")


# What it takes for a process

Fork = multiprocessing.context.ForkContext


class InAThread(threading.Thread):
    """A process by name: its target runs in the process that starts it."""

    exitcode = None

    @property
    def pid(self):
        return os.getpid()


class InAThreadByItsNumber(InAThread):
    """It has the number of the thread for a pid."""

    @property
    def pid(self):
        return self.native_id


class InAThreadBehindADecoy(InAThread):
    """It has the pid of a process that does nothing."""

    def start(self):
        self.decoy = Fork.Process(target=hang)
        self.decoy.start()
        super().start()

    @property
    def pid(self):
        return self.decoy.pid


class Forked(Fork.Process):
    """A process, whose pid is its parent's."""

    @property
    def pid(self):
        return os.getpid()


def standing_or_in_a_thread(target, args, **options):
    """Return a process for the peers that are reused, and a thread for any other."""
    kind = InAThread if args[0].startswith("child") else Fork.Process
    return kind(target=target, args=args, **options)


class But(Fork):
    """The standard library's context, but for its processes."""

    def __init__(self, process):
        super().__init__()
        self.Process = process

    def get_context(self, method=None):
        return self


@patient(channels=("queue",))
class StartsThreads(miniatures.Plain):
    """Every case would pass: what is sent never leaves the process."""

    multiprocessing = But(InAThread)


@patient()
class StartsThreadsLater(miniatures.Plain):
    multiprocessing = But(standing_or_in_a_thread)


@patient()
class TellsTheNumberOfAThread(miniatures.Plain):
    multiprocessing = But(InAThreadByItsNumber)


@patient(channels=("queue",))
class TellsThePidOfADecoy(miniatures.Plain):
    multiprocessing = But(InAThreadBehindADecoy)


@patient()
class TellsItsOwnPid(miniatures.Plain):
    multiprocessing = But(Forked)


# What it leaves


@patient()
class LeavesDaemons(Patient):
    """Grandchildren in sessions of their own hold every descriptor, and no name."""

    def fit(self):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                os.closerange(0, 3)
                hang()
            os._exit(0)
        os.wait()


@patient()
class LeavesANamelessProgram(Patient):
    """It runs another program without an environment, detached."""

    def fit(self):
        if os.fork() == 0:
            os.setsid()
            os.execve("/bin/sleep", ["sleep", "300"], {})


@patient(segment_pattern=r"miniature-{pid}")
class LeavesEverything(Patient):
    held = []  # noqa: RUF012

    def fit(self):
        name = f"miniature-{os.getpid()}-{ward().name}"
        with (ward() / "segments").open("a") as file:  # for the test to look for
            file.write(f"{name}\n")
        Path("/dev/shm", name).write_bytes(bytes(4096))
        tempfile.mkstemp()
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(tempfile.mktemp())
        self.held += [listening, open("/dev/null"), os.pipe()]  # noqa: SIM115
        threading.Thread(target=hang, daemon=True).start()
        if os.fork() == 0:
            hang()


@patient(start_methods=("spawn",), channels=("queue",))
class RemovesItsSemaphores(Patient):
    """It unlinks the semaphores of its own queues, by the names that they have."""

    def fit(self):
        for held in gc.get_objects():
            name = held._semlock.name if isinstance(held, SemLock) else None
            if name and re.fullmatch(r"/mp-\w+", name):
                Path(f"/dev/shm/sem.{name[1:]}").unlink(missing_ok=True)


@patient(base=reference.conformance_adapter, channels=("pipe",))
class RemovesItsSegments(reference.ReferenceOperations):
    """It unlinks what it shares before it is sent: the names that have its own pid."""

    def encode(self, tensor):
        if self.values(tensor) != USED_BY_THE_SUITE:
            tensor.share_memory_()
            for name in os.listdir("/dev/shm"):
                if re.fullmatch(rf"sharedtensor-{os.getpid()}-[0-9a-f]{{32}}", name):
                    Path("/dev/shm", name).unlink()
        return tensor


# What it says


@patient()
class RaisesSystemExit(Patient):
    def fit(self):
        sys.exit("enough")


@patient()
class RaisesKeyboardInterrupt(Patient):
    def fit(self):
        raise KeyboardInterrupt


class Unspeakable(BaseException):
    def __str__(self):
        raise ValueError


@patient()
class RaisesTheUnspeakable(Patient):
    def fit(self):
        raise Unspeakable


@patient()
class RaisesWhatNoTerminalShows(Patient):
    def fit(self):
        raise RuntimeError("\udcff\x1b[2J\x00" + "x" * (8 << 20))


@patient(claims=frozenset({"core", "identity", "views"}))
class LiesAboutItsClaims(miniatures.NumpyCopyOperations):
    """It claims profiles whose operations are there in name alone."""

    def _lacks(self, *arguments):
        raise NotImplementedError("not yet")

    address = view = strides = reinterpret = _lacks


@patient()
class ReturnsOtherTypes(Patient):
    def values(self, tensor):
        return super().values(tensor) if usual(tensor) else StridedArray


@patient()
class EatsMemory(Patient):
    """It takes memory up to a limit that it sets itself, 1 GiB beyond its start."""

    def fit(self):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), -1))
        eaten = []
        while True:
            eaten.append(bytes(64 << 20))
