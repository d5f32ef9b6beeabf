"""Fuzzes the manager with messages of bad clients while a good client uses it.

Hypothesis generates the actions of the bad clients: messages of every kind in any
order, with right, wrong or missing descriptors, mutated and random bytes, messages that
are too long, wrong tokens, floods, answers that are not read, and connections that end
abruptly. A well-behaved client runs in a separate process (see `good_client`).

After each example, the manager has to be the same process. It has answered the good
client within `TIMEOUT` and removed none of its names. It has as many descriptors as
before the example, and its memory has grown by at most `ROOM` since the start. Files of
others still exist. After each batch everything is ended, and nothing may be left.

Hypothesis shrinks a failure for at most five minutes and prints it as a script of a few
calls.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import records
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    rule,
    run_state_machine_as_test,
)
from records import NotHeld
from sandbox import Sandbox, resources_of
from sharedtensor.manager import messages
from sharedtensor_conformance.harness.private_shm import mount_if_permitted
from sharedtensor_conformance.harness.process_tree import SHM, wait_until

GOOD_CLIENT = Path(__file__).with_name("good_client.py")
TIMEOUT = 5.0  # seconds that a good client may have to wait
SOON = 1.0  # seconds until the resources of a connection are released
GRACE = 5.0  # seconds until everything has to be gone
ROOM = 16 * 1024  # KiB
EXAMPLES = 20  # per batch; then the manager has to end, and another one starts
STEPS = 40  # maximum per example
SWEEPS = 4
FLOOD = 3000

# What messages are made of

KINDS = {
    name: value
    for name, value in vars(messages).items()
    if name.isupper() and isinstance(value, bytes) and len(value) == 1 and value > b" "
}
"""The kinds of messages, by their names."""

GOOD = b"<name of the good client>"
CANARY = f"sts-canary-{os.getpid()}".encode()
CANARIES = (
    CANARY,
    b"sharedtensor_" + CANARY,
    b"xsharedtensor-" + CANARY,
    b"sharedtensor." + CANARY,
    b"sharedtensor-\xc3\xa9" + CANARY,
)
FOLDER = b"sharedtensor-folder-" + CANARY
NAMES = (
    *(b"sharedtensor-fuzz-%d" % number for number in range(6)),
    *CANARIES,
    FOLDER,
    GOOD,
    FOLDER + b"/../" + CANARY,
    b"../shm/" + CANARY,
    b"/dev/shm/" + CANARY,
    b"sharedtensor-",
    b"sharedtensor-" + b"a" * (messages.LONGEST_NAME - 13),
    b"sharedtensor-" + b"a" * (messages.LONGEST_NAME - 12),
    b"",
)
DESCRIPTORS = (
    "pipe that stays",
    "pipe that is closed",
    "seqpacket",
    "stream",
    "datagram",
    "listener",
    "file",
    "folder",
    "its own connection",
)

kinds = st.sampled_from(sorted(KINDS))
names = st.sampled_from(NAMES)
tokens = st.sampled_from((b"01234567", b"0123456", b"012345678", b"\0" * 8))
several_names = st.lists(names, max_size=5).map(b"\0".join)
arguments = st.one_of(names, tokens, several_names, st.binary(max_size=24))
descriptors = st.lists(st.sampled_from(DESCRIPTORS), max_size=3)
connections = Bundle("connections")


class BadClients(RuleBasedStateMachine):
    """The connections of one example; each rule is an action of a client."""

    subject: ClassVar[Subject]

    def __init__(self) -> None:
        super().__init__()
        self.subject.be_ready()
        self.opened: list[socket.socket] = []
        self.kept: list[int] = []

    @rule(target=connections)
    def connect(self) -> socket.socket:
        """Connect; a refused connection is reported at the end."""
        found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.opened.append(found)
        found.settimeout(TIMEOUT)
        try:
            with short(self.subject.address) as path:
                found.connect(path)
        except OSError as error:
            self.subject.refused = str(error)
        found.setblocking(False)
        return found

    @rule(to=connections, kind=kinds, argument=arguments, fds=descriptors)
    def send_message(
        self, to: socket.socket, kind: str, argument: bytes, fds: list[str]
    ) -> None:
        """Send a message of one of the protocol's kinds."""
        self.send(to, KINDS[kind] + argument, fds)

    @rule(to=connections, data=st.binary(max_size=48), fds=descriptors)
    def send_random_bytes(self, to: socket.socket, data: bytes, fds: list[str]) -> None:
        """Send random bytes."""
        self.send(to, data, fds)

    @rule(to=connections, kind=kinds, name=names, place=st.integers(0, 40))
    def send_corrupted(
        self, to: socket.socket, kind: str, name: bytes, place: int
    ) -> None:
        """Send a message in which one byte is changed."""
        message = bytearray(KINDS[kind] + name)
        message[place % len(message)] ^= 1 << place % 8
        self.send(to, bytes(message), [])

    @rule(to=connections, kind=kinds, size=st.integers(1, 120_000))
    def send_long(self, to: socket.socket, kind: str, size: int) -> None:
        """Send a long message."""
        self.send(to, KINDS[kind] + b"sharedtensor-" + b"a" * size, [])

    @rule(to=connections, kind=kinds, count=st.sampled_from((17, 100, 253)))
    def send_many_descriptors(self, to: socket.socket, kind: str, count: int) -> None:
        """Send a message with many descriptors."""
        self.send(to, KINDS[kind] + NAMES[0], ["file"] * count)

    @rule(to=connections, kind=kinds, argument=arguments)
    def flood(self, to: socket.socket, kind: str, argument: bytes) -> None:
        """Send one message repeatedly without reading answers."""
        for _ in range(FLOOD):
            if not self.send(to, KINDS[kind] + argument, []):
                return

    @rule(to=connections)
    def read(self, to: socket.socket) -> None:
        """Read an answer, if there is one."""
        with contextlib.suppress(OSError):
            to.recv(100)

    @rule(to=connections, how=st.sampled_from((socket.SHUT_RD, socket.SHUT_WR)))
    def half_close(self, to: socket.socket, how: int) -> None:
        """Close one direction of the connection."""
        with contextlib.suppress(OSError):
            to.shutdown(how)

    @rule(to=connections)
    def close(self, to: socket.socket) -> None:
        """Close a connection, whatever is still in it."""
        to.close()

    def send(self, to: socket.socket, message: bytes, fds: list[str]) -> bool:
        """Send a message without waiting; return whether it was sent."""
        message = message.replace(GOOD, self.subject.name)
        with contextlib.ExitStack() as given:
            numbers = [self.descriptor(kind, to, given) for kind in fds]
            try:
                socket.send_fds(to, [message], numbers, socket.MSG_NOSIGNAL)
            except OSError:
                return False
        self.subject.messages += 1
        return True

    def descriptor(
        self, kind: str, to: socket.socket, given: contextlib.ExitStack
    ) -> int:
        """Return a descriptor of a kind; it is closed here after it was sent."""
        if kind == "its own connection":
            return to.fileno()
        if kind.startswith("pipe"):
            reader, writer = os.pipe()
            given.callback(os.close, reader)
            if kind == "pipe that stays":
                self.kept.append(writer)
            else:
                os.close(writer)
            return reader
        if kind in SOCKETS:
            ours, theirs = socket.socketpair(socket.AF_UNIX, SOCKETS[kind])
            given.enter_context(theirs)
            self.opened.append(ours)
            return theirs.fileno()
        if kind == "listener":
            listener = given.enter_context(socket.socket(socket.AF_UNIX, LISTENER))
            listener.bind("")
            listener.listen()
            return listener.fileno()
        flags = os.O_RDONLY if kind == "folder" else os.O_RDWR
        number = os.open("/" if kind == "folder" else os.devnull, flags)
        given.callback(os.close, number)
        return number

    def teardown(self) -> None:
        """Close all connections; then the manager has to be as before the example."""
        for found in self.opened:
            found.close()
        for number in self.kept:
            os.close(number)
        self.subject.verify()


SOCKETS = {
    "seqpacket": socket.SOCK_SEQPACKET,
    "stream": socket.SOCK_STREAM,
    "datagram": socket.SOCK_DGRAM,
}
LISTENER = socket.SOCK_SEQPACKET


class Subject:
    """A manager, its good client, and files that neither may touch."""

    def __init__(self, sandbox: Sandbox, script: str) -> None:
        self.sandbox, self.script = sandbox, script
        self.process: subprocess.Popen[bytes] | None = None
        self.address, self.manager, self.name = "", 0, b""
        self.before = resources_of(os.getpid())
        self.messages = self.examples = self.served = self.growth = 0
        self.peak, self.refused = 0.0, ""
        self.is_sound = True

    def be_ready(self) -> None:
        """Ensure that a healthy manager is running."""
        if self.process is not None and self.is_sound:
            return
        self.sandbox.clear()
        put_canaries()
        environment = self.sandbox.environment(SHAREDTENSOR_MANAGER_GRACE="0.2")
        self.process = self.sandbox.start(
            sys.executable,
            str(GOOD_CLIENT),
            self.script,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        report = self.ask()
        self.address, self.manager = report["address"], report["manager"]
        self.name = report["name"].encode()
        self.before = resources_of(self.manager)
        self.is_sound, self.refused = True, ""

    def ask(self) -> dict[str, Any]:
        """Return the report of the good client. Raises `AssertionError` if it hangs."""
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        answers = select.select([self.process.stdout], [], [], 4 * TIMEOUT)[0]
        assert answers, f"the good client waits for more than {4 * TIMEOUT:g} s"
        line = self.process.stdout.readline()
        assert line, "the good client has ended"
        report: dict[str, Any] = json.loads(line)
        return report

    def verify(self) -> None:
        """Raise `AssertionError` unless the manager is as it was at the start."""
        self.is_sound = False
        # When the first request is answered, the manager has read everything that was
        # sent. Each further consequence takes one sweep.
        report = [self.ask() for _ in range(SWEEPS)][-1]
        assert not report["fault"], report["fault"]
        assert report["manager"] == self.manager, "the manager has ended"
        assert not self.refused, f"a client was refused: {self.refused}"
        peak = report["peak"]
        assert peak <= TIMEOUT, f"a good client waited {peak:.1f} s"
        assert not (gone := canaries_gone()), f"{gone} was removed"
        if not wait_until(self.is_slim, SOON):
            now, before = resources_of(self.manager), self.before.descriptors
            raise AssertionError(
                f"the manager holds {now.descriptors} descriptors, not {before}"
            )
        growth = resources_of(self.manager).memory - self.before.memory
        assert growth <= ROOM, f"the manager's memory grew by {growth} KiB"
        self.growth = max(self.growth, growth)
        self.peak = max(self.peak, peak)
        self.served += report["served"]
        self.examples += 1
        self.name = report["name"].encode()
        self.is_sound = True

    def is_slim(self) -> bool:
        """Return whether the manager has as many descriptors as at the start."""
        return resources_of(self.manager).descriptors <= self.before.descriptors

    def end(self) -> None:
        """End the good client; then nothing may be left. Raises `NotHeld`."""
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process = None
        if left := self.sandbox.left_after(GRACE):
            raise NotHeld(f"At the end there is {left}.")


@contextlib.contextmanager
def short(address: str) -> Iterator[str]:
    """Yield a path of any length in a form that fits into a socket address."""
    folder = os.open(os.path.dirname(address), os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(address)}"
    finally:
        os.close(folder)


@contextlib.contextmanager
def canaries(sandbox: Sandbox) -> Iterator[None]:
    """Create files in `/dev/shm` that a manager must not touch, for the block."""
    put_canaries()
    sandbox.segments.before.update(map(os.fsdecode, (*CANARIES, FOLDER)))
    try:
        yield
    finally:
        for name in CANARIES:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(in_shm(name))
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(in_shm(FOLDER))


def put_canaries() -> None:
    """Create the missing canary files."""
    os.makedirs(in_shm(FOLDER), exist_ok=True)
    for name in CANARIES:
        Path(in_shm(name)).touch()


def in_shm(name: bytes) -> str:
    """Return the path of a name in `/dev/shm`."""
    return os.path.join(SHM, os.fsdecode(name))


def canaries_gone() -> list[str]:
    """Return the canary files that were removed."""
    here = {os.fsencode(name) for name in os.listdir(SHM)}
    return [os.fsdecode(name) for name in (*CANARIES, FOLDER) if name not in here]


def options() -> records.Parser:
    """Return the parser of the command line."""
    parser = records.Parser(__doc__, prog="fuzz_manager")
    text = "how long to fuzz (default: %(default)g)"
    parser.add_argument("--minutes", type=float, default=20.0, help=text)
    text = "the seed of the first batch (default: %(default)s)"
    parser.add_argument("--seed", type=int, default=1, help=text)
    text = "minimum number of examples in a batch (default: %(default)s)"
    parser.add_argument("--examples", type=int, default=EXAMPLES, help=text)
    text = "fuzz the manager in this script instead of the reference's"
    parser.add_argument("--daemon", default="", metavar="SCRIPT", help=text)
    return parser


def work(given: argparse.Namespace, record: dict[str, Any]) -> str:
    """Fuzz for some minutes, batch by batch; return the sentence of what held."""
    seconds, began, batches = given.minutes * 60, time.monotonic(), 0
    progress = records.Progress(round(seconds), "seconds")
    with Sandbox(mount_if_permitted) as sandbox, canaries(sandbox):
        subject = BadClients.subject = Subject(sandbox, given.daemon)
        while batches == 0 or time.monotonic() - began < seconds:
            one_batch(given.seed + batches, given.examples)
            subject.end()
            batches += 1
            record |= figures(subject, given.seed, batches)
            done = min(round(time.monotonic() - began), round(seconds))
            progress.at(done, f", {subject.messages} messages")
    if not subject.messages:
        raise NotHeld("Not one message was sent: this run has shown nothing.")
    progress.end()
    return (
        f"{subject.messages} messages in {subject.examples} examples: the manager "
        f"lived, another client waited {1000 * subject.peak:.0f} ms at most and lost "
        "nothing, no other file was touched, and nothing was left."
    )


def figures(subject: Subject, first: int, batches: int) -> dict[str, Any]:
    """Return the figures of the examples so far."""
    return {
        "seed": first,
        "batches": batches,
        "kinds": sorted(KINDS),
        "examples": subject.examples,
        "messages": subject.messages,
        "served": subject.served,
        "peak_latency_ms": round(1000 * subject.peak, 1),
        "memory_growth_kib": subject.growth,
        "patience_s": TIMEOUT,
    }


def one_batch(number: int, examples: int) -> None:
    """Run some examples. Raises `NotHeld` with the script of the smallest failure."""
    chosen = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=Verbosity.normal,
        suppress_health_check=list(HealthCheck),
    )
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            run_state_machine_as_test(seed(number)(BadClients), settings=chosen)
    except Exception as error:
        script = "\n".join(getattr(error, "__notes__", []))
        raise NotHeld(
            f"With seed {number}: {type(error).__name__}: {error}\n{script}"
        ) from error


if __name__ == "__main__":
    sys.exit(records.run(None, options(), work))
