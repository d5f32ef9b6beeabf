"""Forked children, threads and finalizers keep the counts true."""

import os
import signal

FORK = """
import os
in_child, to_child = os.pipe()
from_child, out_of_child = os.pipe()
child = os.fork()
if not child:
    os.close(to_child)
    while order := os.read(in_child, 1):
        if order == b"R":
            client.release(name)
        elif order == b"H":
            client.register(name)
        client.sync()
        os.write(out_of_child, b"+")
    os._exit(0)
os.close(in_child)
os.close(out_of_child)
def tell_child(order):
    os.write(to_child, order)
    assert os.read(from_child, 1) == b"+"
result = child
"""


def fork(client, name):
    """Fork a child that releases ("R"), registers ("H") or does nothing (" ")."""
    return client.run(FORK, name=name)


def tell(client, order):
    """Have the child do something, and wait for it."""
    client.run(f"tell_child({order.encode()!r})")


def test_a_child_holds_what_its_parent_held(new_client, name, exists):
    """Clause START-3: the parent may release at once."""
    parent = new_client()
    parent.call("register", name)
    parent.run(FORK + "client.release(name)\nclient.sync()", name=name)
    assert exists(name)
    tell(parent, "R")
    assert not exists(name)


def test_a_child_that_is_killed_releases_what_it_inherited(
    new_client, name, exists, eventually
):
    parent = new_client()
    parent.call("register", name)
    child = fork(parent, name)
    parent.call("release", name)
    parent.call("sync")
    assert exists(name)
    os.kill(child, signal.SIGKILL)
    eventually(lambda: not exists(name))


def test_the_death_of_the_parent_is_seen_while_its_child_lives(
    new_client, name, exists, eventually
):
    """The child keeps no copy of the parent's connection."""
    parent = new_client()
    parent.call("address")
    child = fork(parent, name)
    parent.call("register", name)
    tell(parent, " ")
    bystander = new_client()
    bystander.call("adopt", parent.call("address"))
    bystander.call("status")
    os.kill(child, signal.SIGSTOP)
    parent.kill()
    eventually(lambda: not exists(name))
    os.kill(child, signal.SIGKILL)


def test_the_death_of_the_parent_leaves_the_child_its_holds(
    new_client, name, exists, eventually
):
    parent, bystander = new_client(), new_client()
    parent.call("register", name)
    bystander.call("adopt", parent.call("address"))
    bystander.call("status")
    child = fork(parent, name)
    tell(parent, " ")
    os.kill(child, signal.SIGSTOP)
    parent.kill()
    eventually(lambda: bystander.call("status")["clients"] == 2)
    assert exists(name)
    os.kill(child, signal.SIGKILL)
    eventually(lambda: not exists(name))


def test_parent_and_child_have_connections_of_their_own(new_client, name):
    parent = new_client()
    parent.call("register", name)
    fork(parent, name)
    tell(parent, "H")
    assert parent.call("status")["holds"] == 3
    assert parent.call("status")["clients"] == 2


def test_a_fork_without_names_costs_no_connection(new_client, name):
    parent = new_client()
    parent.call("address")
    fork(parent, name)
    assert parent.call("status")["clients"] == 1
    tell(parent, "H")
    assert parent.call("status")["clients"] == 2


def test_a_child_that_ends_at_once_leaves_nothing(new_client, name, eventually):
    parent = new_client()
    parent.call("register", name)
    count = "import os; result = len(os.listdir('/proc/self/fd'))"
    before = parent.run(count)
    parent.run(
        "for _ in range(20):\n"
        "    child = os.fork()\n"
        "    if not child: os._exit(0)\n"
        "    os.waitpid(child, 0)"
    )
    eventually(lambda: parent.call("status")["clients"] == 1)
    assert parent.call("status")["holds"] == 1
    assert parent.run(count) == before


def test_forks_amid_busy_threads_neither_hang_nor_miscount(new_client, name):
    parent = new_client()
    parent.run(
        """
import os, threading
stop = threading.Event()
def work():
    while not stop.is_set():
        client.register(name)
        client.release(name)
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for _ in range(20):
    child = os.fork()
    if not child:
        client.register(name)
        client.sync()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for thread in threads: thread.join()
client.sync()
""",
        name=name,
    )
    assert parent.call("status")["holds"] == 0


def test_a_fork_amid_a_fork_leaves_the_outer_one_what_it_prepared(
    new_client, name, exists
):
    """As by a signal handler, when a fork is prepared. Clauses LIFE-22, START-3.

    The client is a process of its own: Python's thread pools have a lock for which such
    a fork would wait for ever.
    """
    parent = new_client()
    parent.call("register", name)
    parent.run(
        """
import os
prepare = client.before_fork
def fork_once_more(*forks):
    prepare(*forks)
    client.before_fork = prepare
    child = os.fork()
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert client._client.lock.is_owned(), "for the outer fork"
client.before_fork = fork_once_more
"""
        + FORK
        + "assert not client._client.lock.is_owned()\n"
        "client.release(name)\nclient.sync()",
        name=name,
    )
    assert parent.call("status")["clients"] == 2
    assert exists(name)
    tell(parent, "R")
    assert not exists(name)


def test_two_threads_that_fork_at_once_have_each_their_own_fork(new_client, name):
    """The second one begins when the first one has prepared its own."""
    parent = new_client()
    parent.call("register", name)
    parent.run(
        """
import os, threading
lock, prepare = client._client.lock, client.before_fork
has_begun, hold, statuses = threading.Event(), lock.hold, []
def fork():
    child = os.fork()
    if not child:
        client.sync()
        os._exit(0)
    statuses.append(os.waitpid(child, 0)[1])
other = threading.Thread(target=fork)
def note(timeout):
    if threading.current_thread() is other:
        has_begun.set()
    return hold(timeout)
def prepare_and_begin_the_other(*forks):
    prepare(*forks)
    if not has_begun.is_set():
        other.start()
        assert has_begun.wait(20)
lock.hold, client.before_fork = note, prepare_and_begin_the_other
fork()
other.join()
assert statuses == [0, 0]
lock.run(1, int)  # raises Busy where it is taken for ever
"""
    )


def test_threads_share_a_connection(new_client, name, exists):
    client = new_client()
    client.run(
        """
import threading
def work():
    for _ in range(300):
        client.register(name)
        client.announce_counted(name)
        client.acknowledge_counted(name)
        client.release(name)
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
client.sync()
""",
        name=name,
    )
    counts = client.call("status")
    assert (counts["clients"], counts["holds"], counts["in_flight"]) == (1, 0, 0)
    assert not exists(name)


def test_release_inside_the_lock_is_done_after_it(new_client, name, exists):
    """As a finalizer that the collector runs in the middle of another call."""
    client = new_client()
    client.call("register", name)
    client.run(
        "import contextlib\n"
        "with contextlib.contextmanager(client._client.lock.hold)(20):\n"
        "    client.release(name)\n"
        "    client.register(name + '-nested')\n"
        "    assert len(client._client.lock.jobs) == 2",
        name=name,
    )
    assert client.run("result = len(client._client.lock.jobs)") == 0
    client.call("sync")
    assert not exists(name)
    assert client.call("status")["holds"] == 1


def test_release_does_not_wait_for_another_thread(new_client, name, exists):
    client = new_client()
    client.call("register", name)
    client.run(
        """
import contextlib
import threading
entered, go_on = threading.Event(), threading.Event()
def stay():
    with contextlib.contextmanager(client._client.lock.hold)(20):
        entered.set()
        assert go_on.wait(20)
thread = threading.Thread(target=stay)
thread.start()
entered.wait()
client.release(name)      # would wait for ever: nobody else sets go_on
go_on.set()
thread.join()
""",
        name=name,
    )
    client.call("sync")
    assert not exists(name)


def test_finalizers_at_exit_are_silent(new_client, name, exists, eventually):
    client = new_client()
    client.run(
        """
import weakref
class Holder:
    def __init__(self):
        client.register(name)
        self.release = client.release
    def __del__(self):
        self.release(name)
keep = Holder()
cycle = Holder()
cycle.cycle = cycle
other = Holder()
weakref.finalize(other, client.release, name)
""",
        name=name,
    )
    assert client.leave() == ""
    eventually(lambda: not exists(name))


def test_a_bad_release_is_silent(new_client):
    client = new_client()
    client.call("release", "not-ours")
    client.call("release", "sharedtensor-never-held")
    client.call("release", "sharedtensor-x", "/nowhere/socket")
