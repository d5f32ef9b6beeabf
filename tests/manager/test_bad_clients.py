"""Bad clients lose their connection; others are served. Clause SEC-2."""

import os
import socket
import tempfile
import threading

import pytest
from sharedtensor.manager import messages

GARBAGE = {
    "empty": b"",
    "unknown": b"Z" + b"sharedtensor-x",
    "no name": messages.REGISTER,
    "prefix alone": messages.REGISTER + b"sharedtensor-",
    "another name": messages.REGISTER + b"torch_1_2_3",
    "path": messages.REGISTER + b"sharedtensor-/../../tmp/x",
    "dots": messages.REGISTER + b"sharedtensor-..",
    "zero byte": messages.REGISTER + b"sharedtensor-\0",
    "letters of others": messages.REGISTER + "sharedtensor-\u00e9".encode(),
    "too long": messages.REGISTER + b"sharedtensor-" + b"a" * 243,
    "oversized": messages.REGISTER + b"sharedtensor-" + b"a" * 60000,
    "short token": messages.SYNC + b"0123",
    "long token": messages.STATUS + b"012345678",
    "listening of another": messages.LISTENING,
    "abandon of another": messages.ABANDON,
    "prefork with more": messages.PREFORK + b"x",
}


@pytest.mark.parametrize("message", GARBAGE.values(), ids=GARBAGE)
def test_garbage_ends_its_own_connection_alone(
    new_client, connect, name, exists, message
):
    owner = new_client()
    owner.call("register", name)
    address, pid = owner.call("address"), owner.call("status")["pid"]
    bare = connect(address)
    bare.send(messages.REGISTER + f"{name}-bad".encode())
    bare.send(message)
    assert bare.recv(1) == b""
    counts = owner.call("status")
    assert counts == {
        "pid": pid,
        "clients": 1,
        "names": 1,
        "holds": 1,
        "in_flight": 0,
    }
    assert exists(name)


def test_the_longest_name_is_accepted(new_client):
    client = new_client()
    client.call("register", "sharedtensor-" + "a" * 242)
    assert client.call("status")["names"] == 1


def test_a_flood_without_reading_stops_nobody_else(new_client, connect, name, exists):
    """The manager neither waits for the one who floods nor starves the others."""
    owner = new_client()
    flooding = connect(owner.call("address"))
    stop = threading.Event()

    def flood():
        while not stop.is_set():
            try:
                flooding.send(messages.SYNC + b"01234567")
            except OSError:  # disconnected, since it reads no answers
                return

    thread = threading.Thread(target=flood)
    thread.start()
    for _ in range(20):
        owner.call("register", name)
        owner.call("release", name)
        owner.call("sync")
    stop.set()
    thread.join()
    assert not exists(name)
    assert owner.call("status")["clients"] == 1


def test_a_flood_of_names_stops_nobody_else(new_client, connect, name, exists):
    owner = new_client()
    flooding = connect(owner.call("address"))
    stop = threading.Event()

    def flood():
        while not stop.is_set():
            flooding.send(messages.REGISTER + f"{name}-flood".encode())

    thread = threading.Thread(target=flood)
    thread.start()
    owner.call("register", name)
    owner.call("release", name)
    owner.call("sync")
    stop.set()
    thread.join()
    assert not exists(name)


def test_silent_connections_block_nobody(new_client, connect, name, exists):
    owner = new_client()
    silent = [connect(owner.call("address")) for _ in range(20)]
    silent[0].shutdown(socket.SHUT_RD)
    owner.call("register", name)
    owner.call("release", name)
    owner.call("sync")
    assert not exists(name)


def test_descriptors_that_are_no_connection_are_closed(new_client, connect):
    owner = new_client()
    address, pid = owner.call("address"), owner.call("status")["pid"]
    bare = connect(address)
    before = owner.call("status")
    opened = len(os.listdir(f"/proc/{pid}/fd"))
    reader, writer = os.pipe()
    datagram = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with tempfile.TemporaryFile() as file:
        for descriptor in (file.fileno(), reader, datagram.fileno()):
            socket.send_fds(bare, [messages.PREFORK], [descriptor])
        socket.send_fds(bare, [messages.SYNC + b"01234567"], [reader, writer])
    assert bare.recv(100) == b"01234567"
    assert owner.call("status") == before
    assert len(os.listdir(f"/proc/{pid}/fd")) == opened
    datagram.close()
    os.close(reader)
    os.close(writer)


def test_the_own_connection_is_not_that_of_a_child(new_client, connect, eventually):
    """The manager would have both ends of it, and wait for ever for the end of each."""
    owner = new_client()
    pid = owner.call("status")["pid"]
    opened = len(os.listdir(f"/proc/{pid}/fd"))
    bare = connect(owner.call("address"))
    socket.send_fds(bare, [messages.PREFORK], [bare.fileno()])
    bare.close()
    eventually(lambda: owner.call("status")["clients"] == 1)
    assert len(os.listdir(f"/proc/{pid}/fd")) == opened


def test_a_prefork_message_without_descriptor_does_no_harm(new_client, connect):
    owner = new_client()
    bare = connect(owner.call("address"))
    bare.send(messages.PREFORK + b"")
    bare.send(messages.SYNC + b"01234567")
    assert bare.recv(100) == b"01234567"


TALK = """
import socket
bare = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
bare.settimeout(10)
bare.connect(address)
try:
    bare.send(messages.SYNC + b"01234567")
    result = bare.recv(100).decode()
except ConnectionError:
    result = ""
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_not_served_even_with_the_directory_open(new_client, temporary):
    owner, stranger = new_client(), new_client()
    stranger.run("become_nobody()")
    address = owner.call("address")
    assert owner.run(TALK, address=address) == "01234567"
    os.chmod(temporary, 0o755)
    os.chmod(os.path.dirname(address), 0o755)
    os.chmod(address, 0o777)
    assert stranger.run(TALK, address=address) == ""
    assert owner.call("status")["clients"] == 2  # itself and its bare socket


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_root_is_another_user_too(new_client, eventually):
    with tempfile.TemporaryDirectory() as directory:
        os.chown(directory, 65534, 65534)
        owner = new_client(environment={"TMPDIR": directory})
        owner.run("become_nobody()")
        address = owner.call("address")
        root = new_client()
        assert owner.run(TALK, address=address) == "01234567"
        assert root.run(TALK, address=address) == ""
        with pytest.raises(Exception, match="belongs to another user"):
            root.call("register", "sharedtensor-x", address)
        owner.kill()
        eventually(lambda: not os.listdir(directory))
