"""A manager that was killed has a successor at the same address."""

import contextlib
import fcntl
import os
import resource
import select
import shutil
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sharedtensor.errors import ManagerError
from sharedtensor.manager import launch
from sharedtensor.manager.conversation import Connected
from sharedtensor.manager.link import Link
from sharedtensor.manager.serving import complete
from sharedtensor_conformance.harness import process_tree


def kill_manager(client):
    """Kill the manager and wait for its death, which is not ours to reap."""
    pid = client.call("status")["pid"]
    watch = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([watch], [], [], 10)[0]
    os.close(watch)
    return pid


def test_the_next_call_goes_on_with_a_successor(new_client, name, exists, eventually):
    owner = new_client()
    address = owner.call("address")
    owner.call("register", name)
    killed = kill_manager(owner)
    owner.call("register", f"{name}-next")
    counts = owner.call("status")
    assert counts["pid"] != killed
    assert (counts["names"], counts["holds"]) == (2, 2)
    assert owner.call("address") == address
    owner.kill()
    eventually(lambda: not exists(name))
    assert not Path(address).parent.exists()


def test_names_made_afterwards_go_at_once(new_client, name, exists):
    owner = new_client()
    owner.call("address")
    kill_manager(owner)
    owner.call("register", name)
    owner.call("release", name)
    owner.call("sync")
    assert not exists(name)


def test_names_from_before_stay_to_the_end(new_client, name, exists, eventually):
    """Messages in flight were counted by the manager that died."""
    owner = new_client()
    owner.call("register", name)
    owner.call("announce_counted", name)
    kill_manager(owner)
    owner.call("release", name)
    owner.call("sync")
    assert exists(name)
    owner.leave()
    eventually(lambda: not exists(name))


def test_all_clients_find_one_successor(new_client, name):
    clients = [new_client() for _ in range(4)]
    address = clients[0].call("address")
    for client in clients:
        client.call("adopt", address)
        client.call("register", name)
    kill_manager(clients[0])
    with ThreadPoolExecutor() as threads:
        counts = list(threads.map(lambda client: client.call("status"), clients))
    assert len({count["pid"] for count in counts}) == 1
    assert clients[0].call("status")["holds"] == 4


def test_a_successor_is_started_under_the_lock_of_the_directory(new_client, name):
    """Else two clients that notice at once would start two at one address."""
    owner = new_client()
    folder = os.open(Path(owner.call("address")).parent, os.O_RDONLY)
    kill_manager(owner)
    fcntl.flock(folder, fcntl.LOCK_EX)
    owner.run("timeout, launch.TIMEOUT = launch.TIMEOUT, 0.2")
    with pytest.raises(Exception, match="another process keeps it locked"):
        owner.call("register", name)
    os.close(folder)
    owner.run("launch.TIMEOUT = timeout")
    owner.call("register", name)


def test_a_receiver_that_comes_later_finds_the_successor(new_client, name):
    sender, receiver = new_client(), new_client()
    sender.call("register", name)
    address = sender.call("address")
    kill_manager(sender)
    receiver.call("register", name, address)
    assert sender.call("status")["clients"] == 2


def test_a_manager_that_ended_is_started_again_by_its_own_process(
    new_client, name, exists, eventually, temporary
):
    owner = new_client()
    address = owner.call("address")
    os.kill(owner.call("status")["pid"], signal.SIGTERM)
    eventually(lambda: not any(temporary.iterdir()))
    owner.call("register", name)
    assert owner.call("address") == address
    owner.call("release", name)
    owner.call("sync")
    assert not exists(name)


def test_an_adopted_manager_that_is_gone_with_its_place_is_replaced(new_client, name):
    client = new_client()
    client.call("adopt", "/nowhere/sharedtensor-manager-0/socket")
    client.call("register", name)
    assert client.call("address") != "/nowhere/sharedtensor-manager-0/socket"
    assert client.call("status")["holds"] == 1


def test_a_manager_leaves_the_directory_that_another_has_at_its_path(
    new_client, name, eventually
):
    """Somebody has removed the first one's directory, as cleaners do. Clause MGR-14."""
    first, second = new_client(), new_client()
    address = first.call("address")
    first.call("register", name)
    first.call("sync")
    shutil.rmtree(Path(address).parent)
    second.call("adopt", address)
    second.call("register", f"{name}-other")
    pid = first.call("status")["pid"]
    assert second.call("status")["pid"] != pid
    first.leave()
    eventually(lambda: process_tree.has_ended(pid))
    assert Path(address).exists()
    second.leave()
    eventually(lambda: not Path(address).parent.exists())


def test_a_foreign_manager_that_has_ended_is_an_error(
    new_client, name, eventually, temporary
):
    owner, peer = new_client(), new_client()
    address = owner.call("address")
    owner.leave()
    eventually(lambda: not any(temporary.iterdir()))
    with pytest.raises(Exception, match="its storages are gone") as failure:
        peer.call("register", name, address)
    assert failure.value.args[0] == "ManagerError"


def test_release_says_nothing_of_a_dead_manager(new_client, name, exists, eventually):
    owner = new_client()
    owner.call("register", name)
    kill_manager(owner)
    owner.call("release", name)
    assert owner.leave() == ""
    eventually(lambda: not exists(name))


def test_a_successor_that_cannot_be_is_an_error(new_client, name, broken_python):
    owner = new_client()
    owner.call("register", name)
    kill_manager(owner)
    with pytest.raises(Exception, match=f"'{broken_python}' runs Python") as failure:
        owner.run(
            "import multiprocessing.spawn as s\n"
            "python = s.get_executable()\n"
            "s.set_executable(broken)\n"
            "client.register(name)",
            name=name,
            broken=broken_python,
        )
    assert failure.value.args[0] == "ManagerError"
    owner.run("s.set_executable(python)")
    assert owner.call("status")["holds"] == 1


WITH_A_SHORT_TIMEOUT = "launch.TIMEOUT = 0.2\n"


@pytest.mark.parametrize("call", ["client.sync()", "while True: client.register(name)"])
def test_a_stopped_manager_is_an_error_and_not_a_hang(new_client, name, call):
    owner = new_client()
    pid = owner.call("status")["pid"]
    owner.run(WITH_A_SHORT_TIMEOUT)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(Exception, match="Check whether it is stopped") as failure:
        owner.run(call, name=name)
    assert failure.value.args[0] == "ManagerError"
    os.kill(pid, signal.SIGCONT)
    owner.call("sync")


@pytest.mark.parametrize("way", ["started", "reached", "inherited"])
def test_a_default_timeout_of_the_program_ends_no_connection(
    new_client, name, exists, way
):
    """The manager stalls for longer. Clauses FS-8, MGR-11."""
    owner, starter = new_client(), new_client()
    pid = starter.call("status")["pid"]
    owner.run("import socket; socket.setdefaulttimeout(0.05)")
    if way == "started":
        pid = owner.call("status")["pid"]
    else:
        owner.call("adopt", starter.call("address"))
    owner.call("register", name)
    owner.call("sync")
    if way == "inherited":
        owner.run("go_on_as_a_child()")
    owner.run(WITH_A_SHORT_TIMEOUT)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(Exception, match="ManagerError"):
        owner.run("while True: client.register(name)", name=name)
    os.kill(pid, signal.SIGCONT)
    owner.call("sync")
    assert exists(name)


WITH_SIGNALS = """
import signal
signal.signal(signal.SIGALRM, lambda *arguments: None)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
"""


@pytest.mark.parametrize(
    "call",
    [
        "client.sync()",
        "while True: client.register(name)",
        "launch.connect(address)",
    ],
)
def test_signals_make_no_wait_for_a_stopped_manager_longer(new_client, name, call):
    """They come more often than a wait may take. Clauses MGR-18, FAIL-9."""
    owner = new_client()
    pid = owner.call("status")["pid"]
    address = owner.call("address")
    owner.run(WITH_A_SHORT_TIMEOUT + WITH_SIGNALS)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(Exception, match=r"(ManagerError|TimeoutError)"):
        owner.run(call, name=name, address=address)
    os.kill(pid, signal.SIGCONT)
    owner.call("sync")


@pytest.fixture
def full_listener(temporary, connect):
    """A socket to which nobody can connect until a connection is accepted."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(temporary / "socket"))
        listener.listen(0)
        connect(listener.getsockname())
        yield listener


def test_signals_make_no_wait_for_room_among_clients_longer(new_client, full_listener):
    """As many wait as may, for a manager that accepts none. Clauses MGR-18, FAIL-9."""
    client = new_client()
    client.run(WITH_A_SHORT_TIMEOUT + WITH_SIGNALS)
    with pytest.raises(Exception, match="no room for another client"):
        client.run("launch.connect(address)", address=full_listener.getsockname())


def test_a_client_connects_as_soon_as_there_is_room(full_listener, monkeypatch):
    accepted = []
    waits = iter([lambda: None, lambda: accepted.append(full_listener.accept()[0])])
    monkeypatch.setattr(launch.time, "sleep", lambda seconds: next(waits)())
    connection = complete(launch.SYSTEM.connect(full_listener.getsockname()))
    accepted.append(full_listener.accept()[0])
    connection.send(b"+")
    assert accepted[-1].recv(1) == b"+"
    for opened in (connection, *accepted):
        opened.close()


def test_descriptors_do_not_wait_for_a_manager_that_has_stalled(monkeypatch):
    """It took no message in time before, and its socket is still full."""
    monkeypatch.setattr(launch, "TIMEOUT", 5.0)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            ours.send(b"+")
    link = Link("address", Connected(ours, None))
    link.is_stalled = True
    began = time.monotonic()
    with theirs, pytest.raises(ManagerError, match="reads no messages"):
        link.transmit_now(b"+", (theirs.fileno(),))
    assert time.monotonic() - began < launch.TIMEOUT
    assert link.is_stalled


class Interrupt(BaseException):
    """What a signal handler raises."""


class InterruptedLink(Link):
    """One that is interrupted where it has closed its presence pipe."""

    def __init__(self, presence):
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        super().__init__("address", Connected(self.ours, presence))
        self.to_interrupt = presence

    async def reach(self, may_create):
        return Connected(self.ours, None)

    def close(self, opened):
        super().close(opened)
        if opened is not None and opened == self.to_interrupt:
            self.to_interrupt = None
            raise Interrupt


@pytest.mark.parametrize("how", ["leave", "open"])
def test_a_presence_pipe_is_closed_once_wherever_an_exception_arises(how):
    """Clause FAULT-2: its number may be that of another file by then."""
    end, presence = os.pipe()
    link = InterruptedLink(presence)
    with link.theirs, pytest.raises(Interrupt):
        link.leave() if how == "leave" else complete(link.open(may_create=True))
    os.dup2(end, presence)
    link.leave()
    os.fstat(presence)
    os.close(presence)
    os.close(end)


def test_releases_that_a_stopped_manager_did_not_take_are_not_lost(
    new_client, name, exists
):
    owner = new_client()
    pid = owner.call("status")["pid"]
    owner.run(WITH_A_SHORT_TIMEOUT)
    owner.run("for i in range(2000): client.register(name)", name=name)
    owner.call("sync")
    os.kill(pid, signal.SIGSTOP)
    owner.run("for i in range(2000): client.release(name)", name=name)
    assert owner.run("result = len(client._client.lock.postponed)") > 0
    os.kill(pid, signal.SIGCONT)
    owner.call("sync")
    assert not exists(name)


def test_releases_do_not_wait_for_another_manager_that_is_stopped(
    new_client, name, exists, eventually
):
    owner, other = new_client(), new_client()
    well = other.call("address")
    stopped = owner.call("status")["pid"]
    owner.run(WITH_A_SHORT_TIMEOUT)
    owner.run(
        "for i in range(2000): client.register(name + '-stopped')\n"
        "client.register(name, address)\n"
        "client.sync()",
        name=name,
        address=well,
    )
    os.kill(stopped, signal.SIGSTOP)
    owner.run("for i in range(2000): client.release(name + '-stopped')", name=name)
    owner.call("release", name, well)
    eventually(lambda: not exists(name))
    os.kill(stopped, signal.SIGCONT)
    owner.call("sync")
    assert owner.call("status")["holds"] == 0


WITH_A_MANAGER_THAT_FAILS_TO_ACCEPT = """
async def fail(kernel):
    raise MemoryError
accept, daemon.Kernel.accept = daemon.Kernel.accept, fail
spawn, launch.spawn = launch.spawn, ForkedManager
client.address()
daemon.Kernel.accept, launch.spawn = accept, spawn
"""


def test_names_outlast_a_manager_that_ends_by_an_error(
    new_client, name, exists, eventually
):
    """Only their holders have them, and a message. Clauses FS-8, MGR-11, MGR-14."""
    owner, other = new_client(), new_client()
    owner.run(WITH_A_MANAGER_THAT_FAILS_TO_ACCEPT)
    owner.call("register", name)
    owner.call("announce_counted", name)
    failed = owner.call("status")["pid"]
    address = owner.call("address")
    other.call("register", f"{name}-other", address)
    assert other.call("status", address)["pid"] != failed
    assert exists(name)
    owner.call("release", name)
    owner.call("sync")
    assert exists(name)
    other.leave()
    owner.leave()
    eventually(lambda: not exists(name))
    eventually(lambda: not Path(address).parent.exists())


REGISTER_MANY = """
import os
for number in range(100):
    client.register(f"{name}-{os.urandom(6).hex()}-{'x' * 200}")
"""


def test_names_outlast_a_manager_that_gets_no_memory(new_client, name, exists):
    """As one whose starter is limited does. Clauses FS-8, MGR-11, MGR-14."""
    owner = new_client()
    owner.call("register", name)
    pid = owner.call("status")["pid"]
    resource.prlimit(pid, resource.RLIMIT_AS, (0, resource.RLIM_INFINITY))
    watch = os.pidfd_open(pid)
    while not select.select([watch], [], [], 0)[0]:
        owner.run(REGISTER_MANY, name=name)
    os.close(watch)
    assert owner.call("status")["pid"] != pid
    assert exists(name)


MADE_AND_DEAD = """
import os
async def die(*arguments):
    os.kill(os.getpid(), 9)
launch.SYSTEM.{step} = die
client.register(name, address)
"""


@pytest.mark.parametrize("step", ["make_directory", "bind", "make_presence", "listen"])
def test_who_dies_while_it_starts_a_successor_leaves_what_is_known(
    new_client, name, exists, eventually, step
):
    """The name is in the journal alone: its client is dead, like the manager."""
    witness, maker, starter = new_client(), new_client(), new_client()
    address = witness.call("address")
    witness.call("register", f"{name}-other")
    maker.call("register", name, address)
    maker.call("sync", address)
    killed = kill_manager(witness)
    maker.kill()
    with pytest.raises(ValueError, match="Expecting value"):  # no answer: it is dead
        starter.run(MADE_AND_DEAD.format(step=step), name=name, address=address)
    starter.process.wait()
    assert exists(name)
    assert witness.call("status")["pid"] != killed
    witness.leave()
    eventually(lambda: not exists(name))
    eventually(lambda: not Path(address).parent.exists())


def test_a_silent_client_keeps_its_names_when_all_others_have_gone(
    new_client, environment, name, exists, eventually
):
    """It has not noticed the death of the manager, and others had a successor."""
    silent, other, receiver = new_client(), new_client(), new_client()
    address = silent.call("address")
    silent.call("register", name)
    other.call("adopt", address)
    kill_manager(silent)
    other.call("register", f"{name}-other")
    successor = other.call("status")["pid"]
    other.leave()
    ends = time.monotonic() + 3 * float(environment["SHAREDTENSOR_MANAGER_GRACE"])
    eventually(lambda: time.monotonic() > ends)
    assert exists(name)
    receiver.call("register", name, address)
    assert silent.call("status") == {
        "pid": successor,
        "clients": 2,
        "names": 2,
        "holds": 2,
        "in_flight": 0,
    }
    receiver.leave()
    silent.leave()
    eventually(lambda: not exists(name))
    eventually(lambda: not Path(address).parent.exists())


def test_a_silent_client_keeps_names_that_no_manager_has_read(new_client, name, exists):
    """The manager was stopped and killed; a receiver of the name drops it."""
    silent, receiver = new_client(), new_client()
    address = silent.call("address")
    receiver.call("adopt", address)
    manager = silent.call("status")["pid"]
    os.kill(manager, signal.SIGSTOP)
    silent.call("register", name)
    os.kill(manager, signal.SIGKILL)
    receiver.call("register", name)
    receiver.call("release", name)
    for _ in range(3):
        receiver.call("sync")
    assert exists(name)
    silent.call("register", f"{name}-next")
    assert silent.call("status")["holds"] == 2


def test_no_presence_pipe_is_left_open(new_client, name):
    """One descriptor for each manager, and none of a manager that was killed."""
    owner = new_client()
    count = "import os; result = len(os.listdir('/proc/self/fd'))"
    owner.call("register", name)
    before = owner.run(count)
    for _ in range(3):
        kill_manager(owner)
        owner.call("register", name)
    owner.call("sync")
    assert owner.run(count) == before
    folder = Path(owner.call("address")).parent
    assert sorted(file.name for file in folder.iterdir()) == [
        "clients",
        "names",
        "socket",
    ]
