"""A manager that gets no descriptor or no memory serves on. Clauses FAULT-5, MGR-16."""

import errno
import os
import resource
import select
import socket

import pytest
from sharedtensor.manager import daemon, launch, messages, serving
from sharedtensor.manager.serving import complete


class FullListener(daemon.Listener):
    """One for which the kernel has nothing left."""

    number: int

    def accept(self):
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(
    "number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS]
)
def test_a_connection_that_cannot_be_accepted_is_no_error(tmp_path, number):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listener = FullListener(listening, str(tmp_path))
        listener.number = number
        with pytest.raises(serving.OutOfResources):
            complete(daemon.Kernel(listener, -1).accept())


def test_a_client_is_accepted_when_the_manager_may_have_more_descriptors(
    new_client, connect
):
    """Nobody has left meanwhile, and nobody tells the manager."""
    owner = new_client()
    address, pid = owner.call("address"), owner.call("status")["pid"]
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    opened = set(map(int, os.listdir(f"/proc/{pid}/fd")))
    next_one = min(set(range(len(opened) + 1)) - opened)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (next_one, limits[1]))
    waiting = connect(address)
    waiting.send(messages.SYNC + b"01234567")
    owner.call("sync")  # the manager has looked who waits
    assert not select.select([waiting], [], [], 0)[0]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    assert waiting.recv(8) == b"01234567"


REGISTER_WITH_DESCRIPTORS_FREE = """
import os, resource
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
next_one = os.dup(0)
os.close(next_one)
resource.setrlimit(resource.RLIMIT_NOFILE, (next_one + free, limits[1]))
try:
    client.register(name, address)
finally:
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
"""


def test_a_client_that_cannot_say_that_it_lives_is_refused(new_client, name):
    """A successor would not wait for it, and remove its names. Clauses FS-8, MGR-14."""
    owner, other = new_client(), new_client()
    address = owner.call("address")
    arguments = {"name": name, "address": address}
    with pytest.raises(Exception, match="Too many open files"):
        other.run(REGISTER_WITH_DESCRIPTORS_FREE, free=1, **arguments)
    assert owner.call("status")["holds"] == 0
    other.run(REGISTER_WITH_DESCRIPTORS_FREE, free=2, **arguments)
    assert owner.call("status")["holds"] == 1


def test_a_manager_without_a_presence_pipe_has_clients_all_the_same(tmp_path):
    assert launch.open_presence(str(tmp_path)) is None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as found:
        found.bind(str(tmp_path / daemon.PRESENCE))
        assert launch.open_presence(str(tmp_path)) is None


REFUSED = """
import os, socket
def refuse(*arguments):
    raise OSError(number, os.strerror(number))
socket.socket.send = socket.socket.sendmsg = refuse
try:
    client.{call}
finally:
    del socket.socket.send, socket.socket.sendmsg
"""


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("announce([name])", errno.ETOOMANYREFS),
        ("register(name + '-other')", errno.ENOBUFS),
        ("sync()", errno.ENOMEM),
    ],
)
def test_a_message_that_the_system_refuses_ends_no_connection(
    new_client, name, exists, call, number
):
    """As when others have too many descriptors in flight. Clauses FS-8, MGR-11."""
    owner = new_client()
    owner.call("register", name)
    with pytest.raises(Exception, match="failed") as failure:
        owner.run(REFUSED.format(call=call), name=name, number=number)
    assert failure.value.args[0] == "ResourceError"
    counts = owner.call("status")
    assert (counts["clients"], counts["holds"]) == (1, 1)
    assert exists(name)


def test_a_release_that_the_system_refuses_is_told_later(new_client, name, exists):
    owner = new_client()
    owner.call("register", name)
    owner.run(REFUSED.format(call="release(name)"), name=name, number=errno.ENOBUFS)
    assert exists(name)
    owner.call("sync")
    assert not exists(name)


class Machine(serving.System):
    """One on which a client waits and, for some attempts, no descriptor is left."""

    pid = 1

    def __init__(self, attempts):
        self.attempts = attempts
        self.clock = 0.0
        self.is_watched = False
        self.backlog = ["waiting"]

    def now(self):
        return self.clock

    async def poll(self, seconds):
        if self.is_watched and self.backlog:
            return [serving.LISTENER]
        assert seconds is not None, "the manager waits for ever"
        self.clock += seconds
        return []

    def watch(self, watched):
        pass

    async def close(self, watched):
        pass

    def watch_listener(self, is_watched):
        assert self.is_watched or is_watched, "what is not watched cannot be left"
        self.is_watched = is_watched

    async def accept(self):
        if self.backlog and self.attempts:
            self.attempts -= 1
            raise serving.OutOfResources
        return self.backlog.pop() if self.backlog else None

    async def receive(self, connection):
        return None

    async def open_directory(self):
        return False, [], []

    async def lock(self):
        return True

    async def hide(self):
        return True

    async def show(self):
        pass


def listening_manager(attempts):
    """Return a manager with one client, and its machine."""
    machine = Machine(attempts)
    manager = serving.Manager(machine, "first", 1.0)
    complete(manager.start_listening())
    return manager, machine


def test_a_manager_with_clients_tries_again_and_again():
    manager, machine = listening_manager(3)
    while machine.backlog:
        complete(manager.run_once())
    assert machine.clock == 3 * serving.ACCEPT_RETRY
    assert len(manager.clients) == 2


def test_a_manager_without_clients_ends_in_time_while_it_can_accept_nobody():
    """It asks once more at the end, for who has connected before."""
    manager, machine = listening_manager(1000)
    complete(manager.disconnect(manager.first))
    complete(manager.run())
    assert machine.clock == manager.grace
