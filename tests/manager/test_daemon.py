"""The manager as a process: how it starts, lives and goes. Clauses MGR-1 to 4."""

import os
import signal
import stat
from pathlib import Path

import pytest


def test_it_is_gone_soon_after_its_last_client(
    new_client, temporary, managers, eventually
):
    """Clause MGR-3."""
    client = new_client()
    client.call("address")
    assert len(managers()) == 1
    assert client.leave() == ""
    eventually(lambda: not managers() and not any(temporary.iterdir()), 1.3)


@pytest.mark.parametrize("end", ["leave", "kill"])
def test_names_of_all_clients_go_with_them(
    new_client, name, exists, managers, eventually, end
):
    """Clauses LIFE-9, LIFE-10 and MGR-2: names held and names in flight."""
    clients = [new_client(), new_client()]
    address = clients[0].call("address")
    for client in clients:
        client.call("register", name, address)
        client.call("announce_counted", name, address)
    for client in clients:
        getattr(client, end)()
    eventually(lambda: not exists(name), 1.3)
    eventually(lambda: not managers())


def test_it_has_a_session_and_a_process_group_of_its_own(new_client):
    """Clause MGR-1."""
    client = new_client()
    pid = client.call("status")["pid"]
    assert os.getsid(pid) == os.getpgid(pid) == pid
    assert os.getsid(client.pid) != pid


def test_it_can_be_recognised(new_client):
    pid = new_client().call("status")["pid"]
    assert "sharedtensor-manager" in Path(f"/proc/{pid}/cmdline").read_text()


def test_it_occupies_no_directory_and_no_terminal(new_client):
    pid = new_client().call("status")["pid"]
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (0, 1, 2)} == {"/dev/null"}


def test_a_pipe_of_its_starter_ends_with_its_starter(new_client):
    """Clause MGR-4: inheritable descriptors are no exception."""
    reader, writer = os.pipe()
    client = new_client(pass_fds=[writer])
    os.close(writer)
    os.set_blocking(reader, False)
    client.run("import os; os.set_inheritable(fd, True)", fd=writer)
    client.call("status")
    client.run("os.close(fd)", fd=writer)
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_it_leaves_no_child_to_its_starter(new_client):
    """Neither a living one nor a zombie."""
    client = new_client()
    client.call("status")
    children = Path(f"/proc/{client.pid}/task/{client.pid}/children")
    assert children.read_text() == ""


def test_its_directory_is_closed_to_others(new_client):
    """Clause SEC-2."""
    directory = Path(new_client().call("address")).parent
    status = directory.stat()
    assert stat.S_IMODE(status.st_mode) == 0o700
    assert status.st_uid == os.geteuid()
    assert directory.name.startswith("sharedtensor-manager-")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_it_ignores_the_terminal(new_client, number):
    client = new_client()
    pid = client.call("status")["pid"]
    os.kill(pid, number)
    assert client.call("status")["pid"] == pid


def test_it_cleans_up_when_it_is_told_to_end(
    new_client, name, exists, temporary, eventually
):
    client = new_client()
    client.call("register", name)
    os.kill(client.call("status")["pid"], signal.SIGTERM)
    eventually(lambda: not exists(name) and not any(temporary.iterdir()))


KILLED_BEFORE_THE_DIRECTORY = """
import os
async def die(*arguments):
    os.kill(os.getpid(), 9)
launch.SYSTEM.make_directory = die
client.address()
"""
KILLED_WITH_THE_DIRECTORY_MADE = """
import os
async def make_it_and_die(directory):
    os.mkdir(directory, 0o700)
    os.kill(os.getpid(), 9)
launch.SYSTEM.make_directory = make_it_and_die
client.address()
"""
KILLED_WITH_THE_SOCKET_BOUND = """
import os
bind = launch.SYSTEM.bind
async def bind_and_die(*arguments):
    await bind(*arguments)
    os.kill(os.getpid(), 9)
launch.SYSTEM.bind = bind_and_die
client.address()
"""
KILLED_WITH_THE_SOCKET_LISTENING = """
import os
listen = launch.SYSTEM.listen
async def listen_and_die(*arguments):
    await listen(*arguments)
    os.kill(os.getpid(), 9)
launch.SYSTEM.listen = listen_and_die
client.address()
"""


@pytest.mark.parametrize(
    "code",
    [
        KILLED_BEFORE_THE_DIRECTORY,
        KILLED_WITH_THE_DIRECTORY_MADE,
        KILLED_WITH_THE_SOCKET_BOUND,
        KILLED_WITH_THE_SOCKET_LISTENING,
    ],
)
def test_a_starter_killed_on_the_way_leaves_nothing(
    new_client, temporary, managers, eventually, code
):
    client = new_client()
    with pytest.raises(ValueError, match="Expecting value"):  # no answer: it is dead
        client.run(code)
    eventually(lambda: not any(temporary.iterdir()) and not managers())


def test_two_managers_coexist(new_client, name, exists):
    """Handles carry the address, so each name has one manager."""
    first, second = new_client(), new_client()
    address = first.call("address")
    assert second.call("address") != address
    first.call("register", name)
    second.call("register", name, address)
    first.call("release", name)
    first.call("sync")
    assert exists(name)
    second.call("release", name, address)
    first.call("sync")
    assert not exists(name)


def test_a_client_takes_a_manager_that_it_is_given_unless_it_has_one(new_client):
    first, second, third = new_client(), new_client(), new_client()
    address = first.call("address")
    second.call("adopt", address)
    assert second.call("address") == address
    own = third.call("address")
    third.call("adopt", address)
    assert third.call("address") == own


def test_connections_that_end_leave_no_descriptor(new_client, connect, eventually):
    client = new_client()
    address, pid = client.call("address"), client.call("status")["pid"]
    before = len(os.listdir(f"/proc/{pid}/fd"))
    for bare in [connect(address) for _ in range(50)]:
        bare.close()
    client.call("sync")
    eventually(lambda: len(os.listdir(f"/proc/{pid}/fd")) == before)
