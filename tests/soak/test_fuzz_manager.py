"""A batch of examples that holds, and managers that do not behave."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from sharedtensor.manager import daemon

SCRIPTS = Path(__file__).parents[2] / "soak"
FAULTS = {
    "removes what it is told": (
        "messages.is_name = lambda name: 0 < len(name) < 200\n",
        "state.send_message(bad, 'REGISTER', fuzz_manager.CANARY, [])",
        "was removed",
    ),
    "keeps descriptors": (
        "_received = received_descriptors\n"
        "def received_descriptors(found): return _received(found)[:1]\n",
        "state.send_many_descriptors(bad, 'SYNC', 17)",
        "the manager holds ",
    ),
    "dies of a long message": (
        "suits = messages.is_name\n"
        "def mortal(name): return suits(name) or len(name) > 255 and os._exit(1)\n"
        "messages.is_name = mortal\n",
        "state.send_long(bad, 'REGISTER', 300)",
        "the manager has ended",
    ),
}
EXAMPLE = """
import sys
sys.path.insert(0, {scripts!r})
import fuzz_manager
from sandbox import Sandbox

with Sandbox() as sandbox, fuzz_manager.canaries(sandbox):
    subject = fuzz_manager.Subject(sandbox, sys.argv[1])
    fuzz_manager.BadClients.subject = subject
    state = fuzz_manager.BadClients()
    bad = state.connect()
    {call}
    try:
        state.teardown()
    except AssertionError as error:
        print(error)
    else:
        subject.end()
        print("held")
"""


@pytest.fixture
def play(tmp_path):
    """Play one example against a manager, and return what was wrong with it."""

    def play_example(call, script):
        code = EXAMPLE.format(scripts=str(SCRIPTS), call=call)
        return subprocess.run(
            [sys.executable, "-c", code, script],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
        ).stdout

    return play_example


@pytest.fixture
def broken_daemon(tmp_path_factory):
    """Write a manager of which one part is another one."""

    def written(instead):
        source = Path(daemon.__file__).read_text()
        folder = tmp_path_factory.mktemp("daemon") / "manager"
        shutil.copytree(Path(daemon.__file__).parent, folder)
        path = folder / "daemon.py"
        end = 'if __name__ == "__main__"'
        assert end in source
        path.write_text(source.replace(end, f"{instead}\n\n{end}"))
        return str(path)

    return written


def test_a_batch_on_the_reference_holds(run):
    done = run("fuzz_manager.py", "--minutes=0", "--examples=3")
    assert done.status == 0, done.said
    assert done.record["examples"] > 0
    assert done.record["messages"] > 0
    assert done.record["served"] > 0
    assert done.left == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_manager_that_does_not_behave_is_noticed(play, broken_daemon, fault):
    instead, call, complaint = FAULTS[fault]
    assert play(call, "") == "held\n"
    assert complaint in play(call, broken_daemon(instead))


class Refusing:
    """A subject that is well until somebody has sent something."""

    name, messages, refused = b"sharedtensor-good", 0, ""

    def __init__(self, address, listener):
        self.address, self.listener = str(address), listener

    def be_ready(self):
        self.messages = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                self.listener.accept()[0].close()

    def verify(self):
        assert not self.messages, "somebody has sent something"


def test_a_failure_is_shrunk_to_a_script(scripts, tmp_path):
    import fuzz_manager
    from records import NotHeld

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        address = tmp_path / "socket"
        with fuzz_manager.short(str(address)) as path:
            listener.bind(path)
        listener.listen(1000)
        listener.setblocking(False)
        fuzz_manager.BadClients.subject = Refusing(address, listener)
        with pytest.raises(NotHeld) as failed:
            fuzz_manager.one_batch(1, 20)
    script = str(failed.value).splitlines()
    assert "somebody has sent something" in script[0]
    calls = [line for line in script if line.startswith(("state.", "connections_"))]
    assert len(calls) == 3, script  # connect, send something, end
