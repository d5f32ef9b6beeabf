"""Names in flight are held by a pipe whose other end travels with the message."""

import contextlib
import os
import select
import signal
import socket
import time

import pytest
from sharedtensor.manager import accounting, daemon, launch, messages, serving
from sharedtensor.manager.conversation import UNREAD

UNTIL_IT_WOULD_END = 3  # grace periods


def kill(pid, eventually):
    """Kill a process that is not our child, and wait for its end."""
    pidfd = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: select.select([pidfd], [], [], 0)[0])
    os.close(pidfd)


def in_flight(client):
    return client.call("status")["in_flight"]


@pytest.fixture
def announced(new_client, name, exists):
    """A client that has announced and released a name that has a file."""
    client = new_client()
    client.call("register", name)
    client.run("made = announced([name])", name=name)
    client.run("client.release(name); client.sync()", name=name)
    assert exists(name)
    return client


def test_a_name_in_flight_stays_until_the_pipe_is_closed(
    announced, name, exists, eventually
):
    assert in_flight(announced) == 1
    announced.run("import os; os.close(made); client.sync()")
    eventually(lambda: not exists(name))
    assert in_flight(announced) == 0


def test_a_receiver_that_holds_first_keeps_the_name(
    announced, new_client, name, exists, eventually
):
    receiver = new_client()
    receiver.call("register", name, announced.call("address"))
    announced.run("import os; os.close(made); client.sync()")
    eventually(lambda: in_flight(announced) == 0)
    assert exists(name)
    receiver.call("release", name, announced.call("address"))
    eventually(lambda: not exists(name))


def test_the_names_go_with_a_killed_holder_of_the_message(
    announced, name, exists, eventually
):
    address = announced.call("address")
    announced.kill()
    eventually(lambda: not exists(name))
    eventually(lambda: not os.path.exists(address))


def test_a_message_in_flight_keeps_the_manager(
    announced, environment, name, exists, eventually
):
    """Its sender has gone, and nobody else is a client: the message counts as one."""
    address = announced.call("address")
    number = announced.run("result = made")
    kept = os.open(f"/proc/{announced.pid}/fd/{number}", os.O_WRONLY)
    announced.leave()
    grace = float(environment["SHAREDTENSOR_MANAGER_GRACE"])
    ends = time.monotonic() + UNTIL_IT_WOULD_END * grace
    eventually(lambda: time.monotonic() > ends)
    assert exists(name)
    assert os.path.exists(address)
    os.close(kept)
    eventually(lambda: not exists(name))
    eventually(lambda: not os.path.exists(address))


def test_many_names_go_with_one_descriptor(new_client, name):
    client = new_client()
    names = [f"{name}-{number}" for number in range(600)]
    client.run("made = announced(names)", names=names)
    assert in_flight(client) == 600
    client.run("import os; os.close(made); client.sync()")
    client.run("client.sync()")
    assert client.call("status")["names"] == 0


@pytest.mark.parametrize("what", ["a name", "another descriptor", "two descriptors"])
def test_a_wrong_announcement_ends_the_connection(new_client, connect, name, what):
    client = new_client()
    stranger = connect(client.call("address"))
    reader, writer = os.pipe()
    null = os.open(os.devnull, os.O_RDONLY)
    names, given = {
        "a name": (b"sharedtensor-x\0../x", [reader]),
        "another descriptor": (name.encode(), [null]),
        "two descriptors": (name.encode(), [reader, reader]),
    }[what]
    socket.send_fds(stranger, [messages.ANNOUNCE + names], given)
    assert stranger.recv(1) == b""
    assert in_flight(client) == 0
    for descriptor in (reader, writer, null):
        os.close(descriptor)


def test_a_successor_keeps_what_was_announced_to_the_end(
    announced, name, exists, eventually
):
    """The manager is killed with a name in flight that is never received."""
    manager = announced.call("status")["pid"]
    announced.run("import os; os.close(made)")
    kill(manager, eventually)
    announced.leave()
    eventually(lambda: not exists(name))


def test_a_successor_knows_the_names_of_a_client_that_was_killed_before(
    announced, new_client, name, exists, eventually
):
    """A message is in flight; its sender is killed, and then the manager."""
    address = announced.call("address")
    other = new_client()
    other.call("register", f"{name}-other", address)
    number = announced.run("result = made")
    kept = os.open(f"/proc/{announced.pid}/fd/{number}", os.O_WRONLY)
    announced.kill()
    manager = other.call("status", address)["pid"]
    kill(manager, eventually)
    os.close(kept)
    other.leave()
    eventually(lambda: not exists(name))
    eventually(lambda: not os.path.exists(os.path.dirname(address)))


def test_the_file_of_names_does_not_grow_with_use(new_client, name):
    client = new_client()
    journal = os.path.join(os.path.dirname(client.call("address")), daemon.JOURNAL)
    client.run(
        """
for number in range(5000):
    client.register(f"{name}-{number}")
    client.release(f"{name}-{number}")
client.sync()
""",
        name=name,
    )
    assert os.path.getsize(journal) < 2 * accounting.SPARE_LINES * (len(name) + 6)


def test_an_announcement_of_a_name_that_nobody_holds_keeps_it(
    new_client, connect, name, exists
):
    """Clause MGR-16: what becomes unreachable and is announced at once has to stay."""
    client = new_client()
    address, pid = client.call("address"), client.call("status")["pid"]
    stranger = connect(address)
    reader, writer = os.pipe()
    stranger.send(messages.REGISTER + name.encode())
    stranger.send(messages.RELEASE + name.encode())
    socket.send_fds(stranger, [messages.ANNOUNCE + name.encode()], [reader])
    kept = in_flight(client), exists(name)
    for descriptor in (reader, writer):
        os.close(descriptor)
    client.call("sync")
    assert client.call("status")["pid"] == pid
    assert kept == (1, True)
    assert not exists(name)


def test_a_connection_holds_fewer_messages_than_are_read_at_once():
    """Else a manager could see a pipe closed and not what was sent before."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        launch.set_up(ours)
        count = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                ours.send(b"+")
                count += 1
    assert daemon.GATHERED < count < UNREAD < serving.MESSAGES_AT_ONCE


WITH_A_LARGE_DEFAULT = """
import socket
class Large(socket.socket):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
socket.socket = Large
"""
SIZE = """
import socket
connection = client._client.own_link().connection
result = connection.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
"""


@pytest.mark.parametrize("way", ["started", "reached", "inherited"])
def test_a_connection_holds_no_more_where_the_default_is_larger(new_client, name, way):
    """The default is net.core.wmem_default; a program may not exceed the maximum."""
    owner = new_client()
    if way == "reached":
        owner.call("adopt", new_client().call("address"))
    owner.run(WITH_A_LARGE_DEFAULT)
    owner.call("register", name)
    if way == "inherited":
        owner.run("go_on_as_a_child()")
    assert owner.run(SIZE) <= 2 * messages.BUFFER
