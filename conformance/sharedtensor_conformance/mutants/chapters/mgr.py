"""Mutants of the manager, by way of how it is started."""

import os
import select
import subprocess
import threading
from types import SimpleNamespace

from sharedtensor_conformance.mutants.registry import mutant


def _start_with(change):
    """Start managers with keyword arguments that `change` has changed."""
    from sharedtensor.manager import launch

    def start(command, **options):
        return subprocess.Popen(*change(command, options), **options)

    launch.subprocess = SimpleNamespace(**vars(subprocess) | {"Popen": start})


def _start_after(source):
    """Start managers that run some lines before their own."""

    def change(command, options):
        script = command.index("-S") + 1
        own = "import sys, runpy; sys.argv = sys.argv[1:]"
        run = f"{own}\n{source}\nrunpy.run_path(sys.argv[0], run_name='__main__')"
        return ([*command[:script], "-c", run, *command[script:]],)

    _start_with(change)


@mutant("manager_stays_in_the_session", "MGR-1", "MGR-15")
def manager_stays_in_the_session(steps):
    """The manager is a process of the session and group that started it."""

    def change(command, options):
        options["start_new_session"] = False
        script = command.index("-S") + 1
        source = (
            "import os, sys, runpy; os.setsid = lambda: None; sys.argv = sys.argv[1:]"
        )
        run = f"{source}; runpy.run_path(sys.argv[0], run_name='__main__')"
        return ([*command[:script], "-c", run, *command[script:]],)

    _start_with(change)


@mutant("manager_forgets_to_remove", "MGR-2", "FS-2", "LIFE-10")
def manager_forgets_to_remove(steps):
    """The manager removes no name: only its socket and directory."""

    def change(command, options):
        script = command.index("-S") + 1
        source = (
            "import sys, runpy, os; sys.argv = sys.argv[1:]; unlink = os.unlink; "
            "os.unlink = lambda path, **at: None if at.get('dir_fd') else unlink(path)"
        )
        run = f"{source}; runpy.run_path(sys.argv[0], run_name='__main__')"
        return ([*command[:script], "-c", run, *command[script:]],)

    _start_with(change)


@mutant("manager_inherits_everything", "MGR-4")
def manager_inherits_everything(steps):
    """The manager has all descriptors of the process that starts it."""

    def change(command, options):
        opened = [int(fd) for fd in os.listdir("/proc/self/fd")]
        inherited = [fd for fd in opened if os.path.exists(f"/proc/self/fd/{fd}")]
        options["pass_fds"] = sorted({*options["pass_fds"], *inherited})
        return (command,)

    _start_with(change)


@mutant("manager_keeps_the_output", "MGR-4")
def manager_keeps_the_output(steps):
    """The manager has the standard error of the process that starts it."""

    def change(command, options):
        options["stderr"] = None
        return (command,)

    _start_with(change)


@mutant("strategy_starts_the_manager", "MGR-5")
def strategy_starts_the_manager(steps):
    """Choosing the strategy starts the manager."""
    from sharedtensor.manager import client

    original = steps.set_strategy

    def set_strategy(name):
        original(name)
        if name == "file_system":
            client.address()

    steps.set_strategy = set_strategy


@mutant("manager_copies_a_stream", "MGR-6")
def manager_copies_a_stream(steps):
    """The standard error of the starter is copied before the manager is started."""

    def change(command, options):
        os.close(os.dup(2))
        return (command,)

    _start_with(change)


def _only_the_first_base():
    """Put sockets nowhere but where `TMPDIR` says."""
    from sharedtensor.manager import launch

    launch.candidate_bases = lambda: [os.environ["TMPDIR"]]


@mutant("manager_needs_a_short_path", "MGR-7")
def manager_needs_a_short_path(steps):
    """The path of the manager's socket is used at any length."""
    from contextlib import nullcontext

    from sharedtensor.manager import launch

    _only_the_first_base()
    launch.short = nullcontext


@mutant("manager_needs_ascii", "MGR-7")
def manager_needs_ascii(steps):
    """The path of the manager's directory is encoded in ASCII."""
    from sharedtensor.manager import launch

    _only_the_first_base()
    original = launch.start
    launch.start = lambda path: original(path.encode("ascii", "replace").decode())


@mutant("manager_needs_its_directory", "MGR-8")
def manager_needs_its_directory(steps):
    """The manager is started in `TMPDIR` or not at all."""
    _only_the_first_base()


@mutant("umask_is_taken_from_the_user", "MGR-9")
def umask_is_taken_from_the_user(steps):
    """The file of a segment has the modes that the umask leaves it."""
    original = steps.permissions

    def permissions():
        mask = os.umask(0)
        os.umask(mask)
        return original() & ~mask

    steps.permissions = permissions


@mutant("manager_removes_at_the_end", "MGR-10", "FS-2")
def manager_removes_at_the_end(steps):
    """The manager removes names when its last client has gone, and not before."""
    _start_after(
        "import atexit, os; unlink = os.unlink\n"
        "os.unlink = lambda path, **at: atexit.register(unlink, path, **at)"
    )


@mutant("maker_alone_is_counted", "MGR-11", "FS-8")
def maker_alone_is_counted(steps):
    """The manager is told of names by those who made them, and not by receivers."""
    from sharedtensor.manager import client

    original = client.hold

    def hold(name, address=None):
        if name.startswith(f"sharedtensor-{os.getpid()}-"):
            original(name, address)

    client.hold = hold


@mutant("dies_with_its_manager", "MGR-12")
def dies_with_its_manager(steps):
    """A process that has shared ends when its manager does."""
    from sharedtensor.manager import launch

    original = launch.start

    def watch(connection):
        poller = select.poll()
        poller.register(connection, 0)
        poller.poll()
        os._exit(1)

    def start(directory):
        connection = original(directory)
        copy = connection.dup()
        threading.Thread(target=watch, args=(copy,), daemon=True).start()
        return connection

    launch.start = start


@mutant("aborts_without_its_manager", "MGR-13")
def aborts_without_its_manager(steps):
    """A process whose manager cannot be reached when it drops a tensor aborts."""
    from sharedtensor.manager import launch

    def reach(address, may_create):
        try:
            return launch.connect(address)
        except OSError:
            os.abort()

    launch.reach = reach


@mutant("manager_has_no_successor", "MGR-14")
def manager_has_no_successor(steps):
    """The address of a manager that was killed stays dead."""
    from sharedtensor.errors import ManagerError
    from sharedtensor.manager import launch

    def reach(address, may_create):
        try:
            return launch.connect(address)
        except OSError as error:
            raise ManagerError(f"{address} is dead") from error

    launch.reach = reach


@mutant("successor_hears_of_what_is_held", "MGR-14")
def successor_hears_of_what_is_held(steps):
    """What a killed manager had not read is told again only where it is held still."""
    from sharedtensor.manager.client import Link

    Link.perhaps_unread = lambda link: []


@mutant("manager_gets_signals_of_the_group", "MGR-15")
def manager_gets_signals_of_the_group(steps):
    """The manager is in the group of its starter, and ends when that is told to."""
    manager_stays_in_the_session(steps)


@mutant("long_message_ends_the_manager", "MGR-16")
def long_message_ends_the_manager(steps):
    """The manager takes a message longer than it can use for the end of the world."""
    _start_after(
        "import socket\n"
        "class Socket(socket.socket):\n"
        "    def recvmsg(self, *sizes):\n"
        "        got = super().recvmsg(*sizes)\n"
        "        return got if len(got[0]) < 256 else sys.exit('too long')\n"
        "socket.socket = Socket"
    )


@mutant("manager_waits_for_the_rest", "MGR-16")
def manager_waits_for_the_rest(steps):
    """The manager waits for the rest of a message that is shorter than a name."""
    _start_after(
        "import socket\n"
        "class Socket(socket.socket):\n"
        "    def recvmsg(self, *sizes):\n"
        "        got = super().recvmsg(*sizes)\n"
        "        if 1 < len(got[0]) < 4:\n"
        "            self.setblocking(True)\n"
        "            super().recvmsg(*sizes)\n"
        "        return got\n"
        "socket.socket = Socket"
    )


@mutant("managers_have_one_place", "MGR-17")
def managers_have_one_place(steps):
    """Managers of a user are put at one address, whoever is there already."""
    from sharedtensor.manager import launch

    _only_the_first_base()
    same = {"urandom": bytes}
    launch.os = SimpleNamespace(**vars(os) | same)


@mutant("release_waits_for_the_manager", "MGR-18")
def release_waits_for_the_manager(steps):
    """Who drops a tensor waits until the manager has removed the name."""
    from sharedtensor.manager import client, launch

    launch.PATIENCE = 1000.0
    original = client.release

    def release(name, address=None):
        original(name, address)
        client.sync(address)

    client.release = release


@mutant("manager_misses_the_end_of_clients", "FS-9", "MGR-10", "LIFE-8")
def manager_misses_the_end_of_clients(steps):
    """The manager takes the end of a connection for a client with nothing to say."""
    _start_after(
        "import socket\n"
        "class Socket(socket.socket):\n"
        "    def recvmsg(self, *sizes):\n"
        "        got = super().recvmsg(*sizes)\n"
        "        if not got[0]:\n"
        "            raise BlockingIOError\n"
        "        return got\n"
        "socket.socket = Socket"
    )
