"""Real managers, in a temporary directory of each test's own, and clients to kill."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import sharedtensor
from sharedtensor.manager import daemon
from sharedtensor_conformance.harness import process_tree

SHM = Path("/dev/shm")
GRACE = 0.3
ANSWER_WITHIN = 30.0
SCRIPT = Path(__file__).with_name("scripted_client.py")
PACKAGES = str(Path(next(iter(sharedtensor.__path__))).parent)


class RemoteError(Exception):
    """An exception of a scripted client; its first argument is the type's name."""


class ScriptedClient:
    """A process that uses the manager, at the command of the test."""

    def __init__(self, environment, **options):
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
            **options,
        )
        self.pid = self.process.pid

    def run(self, code, **names):
        """Run code in the client and return its `result`."""
        setting = "".join(f"{key} = {value!r}\n" for key, value in names.items())
        self.process.stdin.write(json.dumps(setting + code) + "\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], ANSWER_WITHIN)[0]:
            self.process.send_signal(signal.SIGABRT)
            raise TimeoutError(f"the client hangs:\n{self.process.stderr.read()}")
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise RemoteError(answer["error"], answer["text"])
        return answer["result"]

    def call(self, function, *arguments):
        """Call a function of the client module."""
        return self.run(f"result = client.{function}(*{arguments!r})")

    def kill(self):
        """End the process by SIGKILL; its children may live on with its pipes."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError):
                pipe.close()

    def leave(self):
        """Let the process exit normally; return what it wrote to stderr."""
        _, errors = self.process.communicate(timeout=30)
        return errors


def wait_until(condition, seconds=5.0):
    """Wait for a cleanup that another process does on its own."""
    assert process_tree.wait_until(condition, seconds), "did not happen in time"


@pytest.fixture
def eventually():
    return wait_until


@pytest.fixture
def temporary():
    """A directory with a short path, as bare sockets need it."""
    with tempfile.TemporaryDirectory(prefix="sharedtensor-test-") as directory:
        yield Path(directory)


@pytest.fixture
def broken_python(tmp_path):
    """The path of what has the name of an interpreter, and fails."""
    path = tmp_path / "python3"
    path.symlink_to("/bin/false")
    return str(path)


@pytest.fixture
def environment(temporary):
    return {
        **os.environ,
        "TMPDIR": str(temporary),
        "SHAREDTENSOR_MANAGER_GRACE": str(GRACE),
        "PYTHONPATH": PACKAGES,
    }


@pytest.fixture
def new_client(environment):
    """Start scripted clients; kill them, and wait for their managers, at the end."""
    clients = []

    def start(**options):
        extra = options.pop("environment", {})
        clients.append(ScriptedClient({**environment, **extra}, **options))
        return clients[-1]

    yield start
    managers = managers_in(environment)
    for client in clients:
        client.kill()
    for pid in managers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not managers_in(environment), 20)


def managers_in(environment):
    """Return the pids of the managers started from this environment."""
    mark = f"TMPDIR={environment['TMPDIR']}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().split(b"\0")
            if daemon.TITLE.encode() in command:
                variables = (entry / "environ").read_bytes().split(b"\0")
                found += [int(entry.name)] if mark in variables else []
    return found


@pytest.fixture
def managers(environment):
    """Return the function that lists the managers of this test."""
    return lambda: managers_in(environment)


@pytest.fixture
def name():
    """A name with a file behind it, as a strategy would have made it."""
    path = SHM / f"sharedtensor-test-{os.urandom(6).hex()}"
    path.touch(0o600)
    yield path.name
    path.unlink(missing_ok=True)


@pytest.fixture
def exists():
    return lambda name: (SHM / name).exists()


@pytest.fixture
def connect():
    """Connect to a manager with a bare socket, to send what no client would."""
    sockets = []

    def open_socket(address):
        bare = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        bare.settimeout(10)
        bare.connect(address)
        sockets.append(bare)
        return bare

    yield open_socket
    for bare in sockets:
        bare.close()
