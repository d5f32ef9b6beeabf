"""Implementations that misbehave: what the harness has to survive.

None of them deletes or signals anything that it cannot name exactly: a path that is
worked out may turn out to be ``/``, and a parent may be somebody else's. All are the
plain miniature, which copies, with one fault in the process it is in. `SANDBOX` in the
environment is a folder for what has to be known across processes.

Most faults stay in the processes of one configuration. These are judged in groups, one
run for each: an adapter whose strategies are called like the faults that they have.
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

WAITED = 3.5
"""Seconds: it takes longer than `LONG_WAIT` of the suite, and less than a deadline."""

DESCRIBED = "SHAREDTENSOR_CONFORMANCE_DESCRIBE" in os.environ
USED_BY_THE_SUITE = [1, 0, 1]
"""What the smoke test, warming and the last tests send: other tests send others."""

adapters = {}
groups = {}


def snake_case(name):
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def faulty(**fields):
    """Register an adapter under its class's name; `fields` are the adapter's."""

    def register(operations):
        where = f"{__name__}:{operations.__name__}"
        name = snake_case(operations.__name__)
        named = {"name": name, "operations": where}
        adapters[name] = replace(miniatures.plain, **named | fields)
        return operations

    return register


def in_group(group):
    """Register operations as one strategy of the adapter of a group."""

    def register(operations):
        groups.setdefault(group, {})[snake_case(operations.__name__)] = operations
        return operations

    return register


def adapter_of_group(group):
    """Return the adapter of a group; the smoke test is that of `Well`."""
    strategies = ("well", *groups[group])
    return replace(adapters["group"], name=group, strategies=strategies)


def __getattr__(name):
    """Return an adapter: ``--impl=faulty_implementations:crashes_at_import``."""
    if name in groups:
        return adapter_of_group(name)
    try:
        return adapters[name]
    except KeyError:
        raise AttributeError(name) from None


def sandbox():
    return Path(os.environ["SANDBOX"])


def die():
    """Die of SIGSEGV here: `os.kill` would let the thread go on while another dies."""
    faulthandler.disable()
    signal.raise_signal(signal.SIGSEGV)


def hang():
    threading.Event().wait()


def signal_supervisor(number):
    """Signal the parent, and only if it is a supervisor: else it is an orphan's."""
    parent = os.getppid()
    if (
        b"harness/supervisor/supervisor.py"
        in Path(f"/proc/{parent}/cmdline").read_bytes()
    ):
        os.kill(parent, number)


def in_a_peer():
    return multiprocessing.parent_process() is not None


def after_the_smoke_test():
    """Return whether an owner was here before this one, who counts as one."""
    marks = sandbox() / "owners"
    before = marks.read_text() if marks.exists() else ""
    with marks.open("a") as file:
        file.write(f"{os.getpid()}\n")
    return bool(before)


class Faulty(miniatures.Plain):
    """The plain miniature, but for a `fault` where a clause's test makes a tensor."""

    def make(self, values, shape, dtype):
        if list(values) != USED_BY_THE_SUITE:
            self.fault()
        return super().make(values, shape, dtype)

    def fault(self):
        """Do nothing."""


def of_the_suite(tensor):
    return tensor.values.tolist() == USED_BY_THE_SUITE


@faulty()
class Well(miniatures.Plain):
    """Nothing is wrong with it but that it copies."""


@faulty()
class Group(miniatures.Plain):
    """It becomes what the strategy of its process is called."""

    def enter_child(self, strategy):
        found = {"well": Well}
        for faults in groups.values():
            found |= faults
        self.__class__ = found[strategy]
        self.enter_child(strategy)


# Crashes and hangs, at each place


@faulty()
class CrashesAtImport(miniatures.Plain):
    def __init__(self):
        if not DESCRIBED:
            os.abort()


@faulty(patience=4.0)
class HangsAtImport(miniatures.Plain):
    def __init__(self):
        if not DESCRIBED:
            hang()


@faulty()
class CrashesInAChild(miniatures.Plain):
    def enter_child(self, strategy):
        if in_a_peer():
            die()


@faulty(patience=5.0)
class HangsInAChild(miniatures.Plain):
    def enter_child(self, strategy):
        if in_a_peer():
            hang()


@faulty()
class CrashesLater(miniatures.Plain):
    """The smoke test passes; no later owner starts."""

    def enter_child(self, strategy):
        if not in_a_peer() and after_the_smoke_test():
            os._exit(7)


@in_group("crashes")
class CrashesInMake(Faulty):
    def fault(self):
        die()


@in_group("hangs")
class HangsInMake(Faulty):
    def fault(self):
        hang()


@faulty(deadline=60.0)
class NeverLate(Faulty):
    """It hangs, and a request may take as long as the specification allows."""

    def fault(self):
        (sandbox() / "hangs").touch()
        hang()


class Crashing:
    def __reduce__(self):
        die()


class Hanging:
    def __reduce__(self):
        hang()


class Substituting(Faulty):
    """Sends something else in the place of the tensor of a test."""

    substitute: type

    def encode(self, tensor):
        return tensor if of_the_suite(tensor) else self.substitute()


@in_group("crashes")
class CrashesInTheReducer(Substituting):
    substitute = Crashing


@faulty(channels=("queue",))
class CrashesInTheThreadOfAQueue(Substituting):
    """Nobody talks to the process that dies: the other one waits for its message."""

    substitute = Crashing


@in_group("hangs")
class HangsInTheReducer(Substituting):
    substitute = Hanging


@in_group("crashes")
class CrashesInDecode(Faulty):
    def decode(self, message):
        if not of_the_suite(message):
            os._exit(9)
        return message


@in_group("hangs")
class HangsInDecode(Faulty):
    def decode(self, message):
        if not of_the_suite(message):
            hang()
        return message


@faulty()
class HangsInEachReceive(HangsInDecode):
    """The same in each configuration."""


@faulty(deadline=20.0)
class WaitsInEachReceive(Faulty):
    """A receive gives up after some seconds."""

    def decode(self, message):
        if not of_the_suite(message):
            threading.Event().wait(WAITED)
            raise TimeoutError("nothing came")
        return message


@in_group("hangs")
class HangsInRelease(Faulty):
    def release(self, tensor):
        if not of_the_suite(tensor):
            hang()


@in_group("harmless")
class HangsAtExit(miniatures.Plain):
    def enter_child(self, strategy):
        atexit.register(hang)


@in_group("harmless")
class LeavesAThreadAtExit(miniatures.Plain):
    def enter_child(self, strategy):
        threading.Thread(target=hang).start()


@in_group("hangs_beyond_signals")
class StopsItself(Faulty):
    def fault(self):
        os.kill(os.getpid(), signal.SIGSTOP)


@in_group("hangs_beyond_signals")
class EndsItsMainThread(Faulty):
    """The process lives on in a thread, and /proc calls it a zombie."""

    def fault(self):
        threading.Thread(target=hang).start()
        ctypes.CDLL(None).pthread_exit(None)


@in_group("hangs_beyond_signals")
class IgnoresSigterm(Faulty):
    def enter_child(self, strategy):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def fault(self):
        hang()


# What is done to the suite


@faulty()
class StopsItsSupervisor(Faulty):
    def fault(self):
        signal_supervisor(signal.SIGSTOP)
        (sandbox() / "stopped").touch()


@faulty()
class KillsItsSupervisor(Faulty):
    def fault(self):
        signal_supervisor(signal.SIGKILL)


@in_group("crashes")
class ClosesDescriptors(Faulty):
    def fault(self):
        os.closerange(3, 256)


@in_group("crashes")
class WritesIntoEverySocket(Faulty):
    def fault(self):
        for fd in range(3, 256):
            try:
                os.write(fd, b"\xff" * 64)
            except OSError:
                continue


@in_group("harmless")
class ChangesTheProcess(Faulty):
    def fault(self):
        os.chdir("/")
        folder = tempfile.mkdtemp()
        os.makedirs(f"{folder}/locked/inner")
        os.chmod(f"{folder}/locked", 0)
        os.umask(0o777)
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
        for number in set(range(1, 32)) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)


@in_group("harmless")
class ReplacesItsStreams(Faulty):
    def fault(self):
        sys.stdout = sys.stderr = sys.stdin = None


@in_group("harmless")
class FloodsItsStreams(Faulty):
    def fault(self):
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


@faulty(channels=("queue",))
class StartsThreads(miniatures.Plain):
    """Every case would pass: what is sent never leaves the process."""

    multiprocessing = But(InAThread)


@faulty()
class StartsThreadsLater(miniatures.Plain):
    multiprocessing = But(standing_or_in_a_thread)


@faulty()
class TellsTheNumberOfAThread(miniatures.Plain):
    multiprocessing = But(InAThreadByItsNumber)


@faulty(channels=("queue",))
class TellsThePidOfADecoy(miniatures.Plain):
    multiprocessing = But(InAThreadBehindADecoy)


@faulty()
class TellsItsOwnPid(miniatures.Plain):
    multiprocessing = But(Forked)


# What it leaves


@faulty(claims=frozenset({"core", "lifetime"}))
class LeavesDaemons(Faulty):
    """Grandchildren in sessions of their own hold every descriptor, and no name."""

    def fault(self):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                os.closerange(0, 3)
                hang()
            os._exit(0)
        os.wait()


@faulty(claims=frozenset({"core", "lifetime"}))
class LeavesANamelessProgram(Faulty):
    """It runs another program without an environment, detached."""

    def fault(self):
        if os.fork() == 0:
            os.setsid()
            os.execve("/bin/sleep", ["sleep", "300"], {})


@faulty(segment_pattern=r"miniature-{pid}")
class LeavesEverything(Faulty):
    held = []  # noqa: RUF012

    def fault(self):
        name = f"miniature-{os.getpid()}-{sandbox().name}"
        with (sandbox() / "segments").open("a") as file:  # for the test to look for
            file.write(f"{name}\n")
        Path("/dev/shm", name).write_bytes(bytes(4096))
        tempfile.mkstemp()
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(tempfile.mktemp())
        self.held += [listening, open("/dev/null"), os.pipe()]  # noqa: SIM115
        threading.Thread(target=hang, daemon=True).start()
        if os.fork() == 0:
            hang()


@faulty(start_methods=("spawn",), channels=("queue",))
class RemovesItsSemaphores(Faulty):
    """It unlinks the semaphores of its own queues, by the names that they have."""

    def fault(self):
        for held in gc.get_objects():
            name = held._semlock.name if isinstance(held, SemLock) else None
            if name and re.fullmatch(r"/mp-\w+", name):
                Path(f"/dev/shm/sem.{name[1:]}").unlink(missing_ok=True)


# What it says


@in_group("answers_nonsense")
class RaisesSystemExit(Faulty):
    def fault(self):
        sys.exit("enough")


@in_group("answers_nonsense")
class RaisesKeyboardInterrupt(Faulty):
    def fault(self):
        raise KeyboardInterrupt


class Unspeakable(BaseException):
    def __str__(self):
        raise ValueError


@in_group("answers_nonsense")
class RaisesTheUnspeakable(Faulty):
    def fault(self):
        raise Unspeakable


@in_group("answers_nonsense")
class RaisesWhatNoTerminalShows(Faulty):
    def fault(self):
        raise RuntimeError("\udcff\x1b[2J\x00" + "x" * (8 << 20))


def _of_the_library(*arguments):
    raise NotImplementedError("not yet")


@faulty(claims=frozenset({"core", "identity", "views"}))
class LiesAboutItsClaims(miniatures.Plain):
    """It claims profiles whose operations are written; the library has none of it."""

    def _lacks(self, *arguments):
        return _of_the_library(*arguments)

    address = view = strides = reinterpret = _lacks


@in_group("answers_nonsense")
class LosesTheTensor(Faulty):
    """None arrives where a tensor was sent."""

    def decode(self, message):
        return message if of_the_suite(message) else None


@in_group("answers_nonsense")
class ReturnsOtherTypes(Faulty):
    def values(self, tensor):
        return super().values(tensor) if of_the_suite(tensor) else Fork


@in_group("answers_nonsense")
class EatsMemory(Faulty):
    """It takes memory up to a limit that it sets itself, 1 GiB beyond its start."""

    def fault(self):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), -1))
        eaten = []
        while True:
            eaten.append(bytes(64 << 20))
