"""Mutants of the manager: of its clients, of how it is started, and of the daemon."""

import inspect
import os
import select
import socket
import sys
import threading
from contextlib import nullcontext, suppress
from functools import wraps

from sharedtensor_conformance.mutants.registry import mutant

MANY_BYTES = 12_000

DAEMON_WITH_A_FAULT = """
import importlib, os, sys
folder = os.path.dirname(sys.argv[1])
sys.path.append(os.path.dirname(folder))
package = os.path.basename(folder)
daemon = importlib.import_module(package + ".daemon")
scope = vars(importlib.import_module(package + ".{module}"))
exec({fault!r}, scope)
exec("{target} = {name}({target})", scope)
daemon.main(sys.argv[2:])
"""


def in_daemon(fault):
    """Let a fault replace its target in daemons that start later, but not here.

    A daemon is a script that does not import this package. So it gets the source of the
    fault, which runs in the namespace of the target's module.
    """

    @wraps(fault)
    def start_daemons_with_it(original):
        from sharedtensor.manager import launch

        command = launch.command
        code = DAEMON_WITH_A_FAULT.format(
            fault=undecorated_source(fault),
            name=fault.__name__,
            module=original.__module__.rpartition(".")[2],
            target=original.__qualname__,
        )

        def command_with_a_fault(inherited, directory):
            python, isolated, no_site, *script = command(inherited, directory)
            return [python, isolated, no_site, "-c", code, *script]

        launch.command = command_with_a_fault
        return original

    return start_daemons_with_it


def undecorated_source(function):
    """Return the source of a function of a module, without its decorators."""
    source = inspect.getsource(function)
    return source[f"\n{source}".index("\ndef ") :]


def temporary_directory_alone():
    """Return `TMPDIR` as the only directory in which a manager can be."""
    return [os.environ["TMPDIR"]]


@mutant(
    "manager_stays_in_the_session",
    "MGR-1",
    "MGR-15",
    replaces=("manager.launch.process_options", "manager.daemon.detach"),
)
def manager_stays_in_the_session(process_options, detach):
    """The manager is a process of the session and group that started it."""

    def same_session(inherited):
        return process_options(inherited) | {"start_new_session": False}

    return same_session, in_daemon(stay_in_the_session)(detach)


def stay_in_the_session(detach):
    """Return a `detach` that leaves the daemon in the session of its starter."""

    def detach_in_the_session():
        os.setsid = lambda: None
        detach()

    return detach_in_the_session


@mutant(
    "manager_forgets_to_remove",
    "MGR-2",
    "FS-2",
    "LIFE-10",
    replaces="manager.daemon.remove_segment",
)
@in_daemon
def manager_forgets_to_remove(remove_segment):
    """The manager removes no name: only its socket and directory."""
    return lambda name, shm: None


@mutant(
    "manager_inherits_everything", "MGR-4", replaces="manager.launch.process_options"
)
def manager_inherits_everything(process_options):
    """The manager has all descriptors of the process that starts it."""

    def inherit_everything(inherited):
        listed = [int(fd) for fd in os.listdir("/proc/self/fd")]
        opened = [fd for fd in listed if os.path.exists(f"/proc/self/fd/{fd}")]
        return process_options(inherited) | {"pass_fds": sorted({*inherited, *opened})}

    return inherit_everything


@mutant("manager_keeps_the_output", "MGR-4", replaces="manager.launch.process_options")
def manager_keeps_the_output(process_options):
    """The manager has the standard error of the process that starts it."""
    return lambda inherited: process_options(inherited) | {"stderr": None}


@mutant("strategy_starts_the_manager", "MGR-5", replaces="protocol.set_strategy")
def strategy_starts_the_manager(set_strategy):
    """Choosing the strategy starts the manager."""
    from sharedtensor.manager import client

    def set_strategy_and_start(name):
        set_strategy(name)
        if name == "file_system":
            client.address()

    return set_strategy_and_start


@mutant("long_message_starts_the_manager", "MGR-5", replaces="protocol.pack_message")
def long_message_starts_the_manager(pack_message):
    """Under `file_system` a message of many bytes starts the manager."""
    from sharedtensor import state
    from sharedtensor.manager import client

    def pack(obj):
        message = pack_message(obj)
        if state.strategy == "file_system" and len(message.payload) > MANY_BYTES:
            client.address()
        return message

    return pack


@mutant("sending_starts_the_manager", "MGR-5", replaces="protocol.pack_message")
def sending_starts_the_manager(pack_message):
    """Under `file_system` a message with a descriptor starts the manager."""
    from sharedtensor import state
    from sharedtensor.manager import client

    def pack(obj):
        message = pack_message(obj)
        if state.strategy == "file_system" and message.outbox.descriptors:
            client.address()
        return message

    return pack


@mutant("manager_copies_a_stream", "MGR-6", replaces="manager.launch.spawn")
def manager_copies_a_stream(spawn):
    """The standard error of the starter is copied before the manager is started."""

    def copy_and_spawn(listener, first, directory):
        os.close(os.dup(2))
        return spawn(listener, first, directory)

    return copy_and_spawn


@mutant(
    "manager_needs_a_short_path",
    "MGR-7",
    replaces=("manager.launch.candidate_bases", "manager.launch.short_path"),
)
def manager_needs_a_short_path(candidate_bases, short_path):
    """The path of the manager's socket is used at any length."""
    return temporary_directory_alone, nullcontext


@mutant(
    "measures_the_temporary_directory",
    "MGR-7",
    replaces=("manager.launch.candidate_bases", "manager.launch.short_path"),
)
def measures_the_temporary_directory(candidate_bases, short_path):
    """The path of the socket is shortened if that of `TMPDIR` is no address."""

    def short_path_under_a_long_one(path):
        base = os.path.dirname(os.path.dirname(path))
        return short_path(path) if len(os.fsencode(base)) > 107 else nullcontext(path)

    return temporary_directory_alone, short_path_under_a_long_one


@mutant(
    "address_is_too_long_by_one",
    "MGR-7",
    replaces=("manager.launch.candidate_bases", "manager.daemon.SUN_PATH"),
)
def address_is_too_long_by_one(candidate_bases, longest):
    """The path of a socket is used up to 108 bytes, which leaves none for its end."""
    return temporary_directory_alone, longest + 1


@mutant(
    "manager_needs_ascii",
    "MGR-7",
    replaces=("manager.launch.candidate_bases", "manager.launch.start"),
)
def manager_needs_ascii(candidate_bases, start):
    """The path of the manager's directory is encoded in ASCII."""

    def start_in_ascii(directory):
        return start(directory.encode("ascii", "replace").decode())

    return temporary_directory_alone, start_in_ascii


@mutant(
    "manager_needs_its_directory", "MGR-8", replaces="manager.launch.candidate_bases"
)
def manager_needs_its_directory(candidate_bases):
    """The manager is started in `TMPDIR` or not at all."""
    return temporary_directory_alone


@mutant("umask_is_taken_from_the_user", "MGR-9", replaces="segments.permissions")
def umask_is_taken_from_the_user(permissions):
    """The file of a segment has the modes that the umask leaves it."""

    def permissions_under_the_umask():
        mask = os.umask(0)
        os.umask(mask)
        return permissions() & ~mask

    return permissions_under_the_umask


@mutant(
    "manager_removes_at_the_end",
    "MGR-10",
    "FS-2",
    replaces="manager.serving.Manager.remove_name",
)
@in_daemon
def manager_removes_at_the_end(remove_name):
    """The manager removes names when its last client has gone, and not before."""

    async def leave_name(manager, name):
        pass

    return leave_name


@mutant(
    "death_takes_what_messages_have",
    "FS-8",
    replaces="manager.accounting.Names.release_all",
)
@in_daemon
def death_takes_what_messages_have(release_all):
    """The names that an ended process held go, though a message of it has them."""

    def release(names, holds):
        for name in holds:
            names.usages[name].in_flight = 0
        release_all(names, holds)

    return release


@mutant(
    "maker_alone_is_counted",
    "MGR-11",
    "FS-8",
    replaces="strategies.acknowledge_name",
)
def maker_alone_is_counted(acknowledge_name):
    """The manager is told of names by those who made them, and not by receivers."""

    def count_the_message_as_received(name, address, announcement):
        if not isinstance(announcement, int):
            announcement.received(name, address)

    return count_the_message_as_received


@mutant("dies_with_its_manager", "MGR-12", replaces="manager.launch.start")
def dies_with_its_manager(start):
    """A process that has shared ends when its manager does."""

    def die_with(connection):
        poller = select.poll()
        poller.register(connection, 0)
        poller.poll()
        os._exit(1)

    def start_and_watch(directory):
        connected = start(directory)
        copy = connected.connection.dup()
        threading.Thread(target=die_with, args=(copy,), daemon=True).start()
        return connected

    return start_and_watch


@mutant("aborts_without_its_manager", "MGR-13", replaces="manager.launch.reach")
def aborts_without_its_manager(reach):
    """A process whose manager cannot be reached when it drops a tensor aborts."""
    from sharedtensor.manager import launch

    def connect_or_abort(address, may_create):
        try:
            return launch.connect(address)
        except OSError:
            os.abort()

    return connect_or_abort


@mutant("manager_has_no_successor", "MGR-14", replaces="manager.launch.reach")
def manager_has_no_successor(reach):
    """The address of a manager that was killed stays dead."""
    from sharedtensor.errors import ManagerError
    from sharedtensor.manager import launch

    def connect_alone(address, may_create):
        try:
            return launch.connect(address)
        except OSError as error:
            raise ManagerError(f"{address} is dead") from error

    return connect_alone


@mutant(
    "successor_has_no_successor",
    "MGR-14",
    replaces="manager.conversation.Conversation.open",
)
def successor_has_no_successor(open_connection):
    """A client has another manager once, and no third one."""
    replaced = set()

    async def open_once(self, may_create):
        if self.presence is not None and self.address in replaced:
            raise self.lost()
        replaced.update([self.address] if self.presence is not None else [])
        await open_connection(self, may_create)

    return open_once


@mutant(
    "successor_hears_of_what_is_held",
    "MGR-13",
    replaces="manager.conversation.Conversation.perhaps_unread",
)
def successor_hears_of_what_is_held(perhaps_unread):
    """What a killed manager had not read is told again only where it is held still."""
    return lambda link: []


@mutant(
    "successor_forgets_the_silent", "MGR-14", replaces="manager.launch.open_presence"
)
def successor_forgets_the_silent(open_presence):
    """A successor does not hear of clients that have not noticed the end of another."""
    return lambda directory: None


@mutant(
    "manager_gets_signals_of_the_group",
    "MGR-15",
    replaces=("manager.launch.process_options", "manager.daemon.detach"),
)
def manager_gets_signals_of_the_group(process_options, detach):
    """The manager is in the group of its starter, and ends when that is told to."""
    return manager_stays_in_the_session(process_options, detach)


@mutant("long_message_ends_the_manager", "MGR-16", replaces="manager.daemon.receive")
@in_daemon
def long_message_ends_the_manager(receive):
    """The manager takes a message longer than it can use for the end of the world."""

    def exit_or_receive(connection):
        if len(connection.recv(256, socket.MSG_PEEK)) == 256:
            sys.exit("too long")
        return receive(connection)

    return exit_or_receive


@mutant("many_bytes_end_the_manager", "MGR-16", replaces="manager.daemon.receive")
@in_daemon
def many_bytes_end_the_manager(receive):
    """The manager ends when a connection has brought more than 512 KiB."""
    brought = {}

    def exit_or_receive(connection):
        size = connection.recv_into(bytearray(1), 1, socket.MSG_PEEK | socket.MSG_TRUNC)
        brought[connection] = brought.get(connection, 0) + size
        if brought[connection] > 512 << 10:
            sys.exit("too much")
        return receive(connection)

    return exit_or_receive


@mutant("manager_waits_for_the_rest", "MGR-16", replaces="manager.daemon.receive")
@in_daemon
def manager_waits_for_the_rest(receive):
    """The manager waits for the rest of a message that is shorter than a name."""

    def receive_the_rest(connection):
        message, descriptors = receive(connection)
        if 1 < len(message) < 4:
            connection.setblocking(True)
            receive(connection)
        return message, descriptors

    return receive_the_rest


@mutant("managers_have_one_place", "MGR-17", replaces="manager.launch.new_directory")
def managers_have_one_place(new_directory):
    """Managers of a user are put at one address, whoever is there already."""
    return lambda base: os.path.join(os.environ["TMPDIR"], "sharedtensor-manager-0")


@mutant(
    "release_waits_for_the_manager",
    "MGR-18",
    replaces=("manager.launch.TIMEOUT", "manager.client.release"),
)
def release_waits_for_the_manager(timeout, release):
    """Who drops a tensor waits until the manager has removed the name."""
    from sharedtensor.manager import client

    def release_and_wait(name, address=None):
        release(name, address)
        client.sync(address)

    return 1000.0, release_and_wait


@mutant(
    "manager_misses_the_end_of_clients",
    "FS-9",
    "MGR-10",
    "LIFE-8",
    replaces="manager.daemon.receive",
)
@in_daemon
def manager_misses_the_end_of_clients(receive):
    """The manager takes the end of a connection for a client with nothing to say."""

    def receive_but_no_end(connection):
        message, descriptors = receive(connection)
        if not message:
            raise BlockingIOError
        return message, descriptors

    return receive_but_no_end


@mutant(
    "release_is_told_once",
    "MGR-18",
    replaces="manager.client.QueuedMessage.__call__",
)
def release_is_told_once(deliver):
    """What a manager does not take at once it is never told."""
    from sharedtensor.finalizers import Postponed

    def deliver_or_forget(self):
        with suppress(Postponed):
            deliver(self)

    return deliver_or_forget


@mutant(
    "sharing_alone_tells_of_before",
    "MGR-18",
    replaces=("manager.client.QueuedMessage.__call__", "strategies.register_name"),
)
def sharing_alone_tells_of_before(deliver, register_name):
    """What a manager did not take at once it is told when its client shares again."""
    from sharedtensor.finalizers import Postponed

    late, shared_since = set(), []

    def deliver_unless_late(self):
        if self.argument in late and not shared_since:
            raise Postponed
        try:
            deliver(self)
        except Postponed:
            late.add(self.argument)
            shared_since.clear()
            raise

    def register_and_tell(name, address):
        shared_since.append(name)
        register_name(name, address)

    return deliver_unless_late, register_and_tell


@mutant(
    "names_of_a_second_time_are_not_told",
    "MGR-2",
    replaces=("strategies.register_name", "strategies.FileSystem.release"),
)
def names_of_a_second_time_are_not_told(register_name, release):
    """A process tells its manager of no name any more once it has dropped all."""
    held, dropped_all = set(), []

    def register(name, address):
        held.add(name)
        if not dropped_all:
            register_name(name, address)

    def release_and_count(self, segment):
        release(self, segment)
        if segment.token in held:
            held.discard(segment.token)
            dropped_all.extend([] if held else [True])

    return register, release_and_count
