"""A manager that was killed has a successor at the same address."""

import fcntl
import os
import select
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest


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


def test_a_successor_that_cannot_be_is_an_error(new_client, name):
    owner = new_client()
    owner.call("register", name)
    kill_manager(owner)
    with pytest.raises(Exception, match="'/bin/false' runs Python") as failure:
        owner.run(
            "import multiprocessing.spawn as s\n"
            "python = s.get_executable()\n"
            "s.set_executable('/bin/false')\n"
            "client.register(name)",
            name=name,
        )
    assert failure.value.args[0] == "ManagerError"
    owner.run("s.set_executable(python)")
    assert owner.call("status")["holds"] == 1


WITH_A_SHORT_TIMEOUT = """
launch.TIMEOUT = 0.2
launch.set_timeouts(client._client.own_link().connection)
"""


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
    assert owner.run("result = len(client._client.lock.jobs)") > 0
    os.kill(pid, signal.SIGCONT)
    owner.call("sync")
    assert not exists(name)
