"""Mutants of the manager: of how it is started, and of what it does.

The manager of the reference is its keeper of names: see `sharedtensor.names`.
"""

import fcntl
import inspect
import os
import threading
import time
from functools import wraps

from sharedtensor_conformance.mutants import keeper_with_a_socket
from sharedtensor_conformance.mutants.registry import mutant

MANY_BYTES = 12_000

KEEPER_WITH_A_FAULT = """
import os, sys
__name__ = "keeper"
with open({script!r}) as file:
    exec(compile(file.read(), {script!r}, "exec"))
exec({fault!r})
{target} = {name}({target})
main(sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
os._exit(0)
"""


def in_keeper(fault):
    """Let a fault replace its target in keepers that start later, but not here.

    A keeper is a script that does not import this package. So it gets the source of the
    fault, to which it is the module `__main__`.
    """

    @wraps(fault)
    def start_keepers_with_it(original):
        from sharedtensor.names import program

        options = program.options

        def options_with_a_fault(*arguments):
            found = options(*arguments)
            python, isolated, no_site, script, *rest = found["args"]
            code = KEEPER_WITH_A_FAULT.format(
                script=script,
                fault=undecorated_source(fault),
                name=fault.__name__,
                target=original.__name__,
            )
            return found | {"args": [python, isolated, no_site, "-c", code, *rest]}

        program.options = options_with_a_fault
        return original

    return start_keepers_with_it


def undecorated_source(function):
    """Return the source of a function of a module, without its decorators."""
    source = inspect.getsource(function)
    return source[f"\n{source}".index("\ndef ") :]


@mutant(
    "manager_stays_in_the_session",
    "MGR-1",
    "MGR-15",
    replaces="names.program.options",
)
def manager_stays_in_the_session(options):
    """The manager is a process of the session and group that started it."""
    return lambda *given: options(*given) | {"start_new_session": False}


@mutant("manager_gets_signals_of_the_group", "MGR-15", replaces="names.program.options")
def manager_gets_signals_of_the_group(options):
    """The manager is in the group of its starter, and ends with it."""
    return manager_stays_in_the_session(options)


@mutant(
    "manager_forgets_to_remove",
    "MGR-2",
    "LIFE-10",
    replaces="names.keeper.is_removed",
)
@in_keeper
def manager_forgets_to_remove(is_removed):
    """The manager removes no name."""
    return lambda name, locks: True


@mutant("manager_inherits_everything", "MGR-4", replaces="names.program.options")
def manager_inherits_everything(options):
    """The manager has all descriptors of the process that starts it."""

    def inherit_everything(program, presence):
        listed = [int(fd) for fd in os.listdir("/proc/self/fd")]
        opened = [fd for fd in listed if os.path.exists(f"/proc/self/fd/{fd}")]
        return options(program, presence) | {"pass_fds": opened}

    return inherit_everything


@mutant("manager_keeps_the_output", "MGR-4", replaces="names.program.options")
def manager_keeps_the_output(options):
    """The manager has the standard error of the process that starts it."""
    return lambda *given: options(*given) | {"stderr": None}


@mutant("strategy_starts_the_manager", "MGR-5", replaces="protocol.set_strategy")
def strategy_starts_the_manager(set_strategy):
    """Choosing the strategy starts the manager."""
    from sharedtensor.names import program

    def set_strategy_and_start(name):
        set_strategy(name)
        if name == "file_system":
            program.current()

    return set_strategy_and_start


@mutant("long_message_starts_the_manager", "MGR-5", replaces="protocol.pack_message")
def long_message_starts_the_manager(pack_message):
    """Under `file_system` a message of many bytes starts the manager."""
    from sharedtensor import state
    from sharedtensor.names import program

    def pack(obj):
        message = pack_message(obj)
        if state.strategy == "file_system" and len(message.payload) > MANY_BYTES:
            program.current()
        return message

    return pack


@mutant("sending_starts_the_manager", "MGR-5", replaces="protocol.pack_message")
def sending_starts_the_manager(pack_message):
    """Under `file_system` a message with a descriptor starts the manager."""
    from sharedtensor import state
    from sharedtensor.names import program

    def pack(obj):
        message = pack_message(obj)
        if state.strategy == "file_system" and message.descriptors:
            program.current()
        return message

    return pack


@mutant("manager_copies_a_stream", "MGR-6", replaces="names.program.start_keeper")
def manager_copies_a_stream(start_keeper):
    """The standard error of the starter is copied before the manager is started."""

    def copy_and_start(program):
        os.close(os.dup(2))
        start_keeper(program)

    return copy_and_start


# A manager with a socket: that of the reference does without


def with_a_socket(options, reaction, path_of, binds_inside=lambda path: False):
    """Return the `options` of a keeper that has a socket; see `keeper_with_a_socket`.

    `path_of` returns the path of the socket for a program, and `binds_inside` whether
    the address of a path is its last part alone.
    """

    def options_with_a_socket(program, presence):
        found = options(program, presence)
        python, isolated, no_site, script, *rest = found["args"]
        path = path_of(program)
        bind = "inside" if binds_inside(path) else "whole"
        started = [python, isolated, no_site, keeper_with_a_socket.__file__]
        return found | {"args": [*started, script, path, bind, reaction, *rest]}

    return options_with_a_socket


def socket_in_tmpdir(program):
    """Return the path of a socket in a new folder below that for temporary files."""
    made = os.path.join(os.environ["TMPDIR"], f"sharedtensor-manager-{program}")
    os.makedirs(made, 0o700, exist_ok=True)
    return os.path.join(made, "socket")


@mutant("manager_needs_a_short_path", "MGR-7", replaces="names.program.options")
def manager_needs_a_short_path(options):
    """The path of the manager's socket is used at any length."""
    return with_a_socket(options, "ignore", socket_in_tmpdir)


@mutant("measures_the_temporary_directory", "MGR-7", replaces="names.program.options")
def measures_the_temporary_directory(options):
    """The path of the socket is shortened if that of `TMPDIR` is no address."""

    def base_is_long(path):
        return len(os.fsencode(os.environ["TMPDIR"])) > 107

    return with_a_socket(options, "ignore", socket_in_tmpdir, base_is_long)


@mutant("address_is_too_long_by_one", "MGR-7", replaces="names.program.options")
def address_is_too_long_by_one(options):
    """The path of a socket is used up to 108 bytes, which leaves none for its end."""

    def is_long(path):
        return len(os.fsencode(path)) > 108

    return with_a_socket(options, "ignore", socket_in_tmpdir, is_long)


@mutant("manager_needs_ascii", "MGR-7", replaces="names.program.options")
def manager_needs_ascii(options):
    """The path of the manager's socket is encoded in ASCII."""

    def path_of(program):
        return socket_in_tmpdir(program).encode("ascii", "replace").decode()

    return with_a_socket(options, "ignore", path_of, lambda path: len(path) > 107)


@mutant("manager_needs_its_directory", "MGR-8", replaces="names.program.options")
def manager_needs_its_directory(options):
    """The manager has a socket in `TMPDIR`, or is not started."""

    def path_of(program):
        try:
            return socket_in_tmpdir(program)
        except OSError as error:
            return f"/nowhere/{error.errno}"

    return with_a_socket(options, "ignore", path_of)


@mutant("long_message_ends_the_manager", "MGR-16", replaces="names.program.options")
def long_message_ends_the_manager(options):
    """The manager ends when a message is longer than it can use."""
    return with_a_socket(options, "end_by_length", socket_in_tmpdir)


@mutant("many_bytes_end_the_manager", "MGR-16", replaces="names.program.options")
def many_bytes_end_the_manager(options):
    """The manager ends when a connection has brought more than 512 KiB."""
    return with_a_socket(options, "end_by_amount", socket_in_tmpdir)


@mutant("manager_waits_for_the_rest", "MGR-16", replaces="names.program.options")
def manager_waits_for_the_rest(options):
    """The manager waits for the rest of a message that is shorter than a name."""
    return with_a_socket(options, "wait_for_the_rest", socket_in_tmpdir)


# What the manager removes, and when


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
    "FS-9",
    replaces="names.keeper.keep",
)
@in_keeper
def manager_removes_at_the_end(keep):
    """The manager removes names when its last process has gone, and not before."""
    import select

    def wait_and_keep(program, locks, grace, presence):
        poll = select.poll()
        poll.register(presence, 0)
        poll.poll()
        keep(program, locks, grace, presence)

    return wait_and_keep


@mutant("death_takes_what_messages_have", "FS-8", replaces="names.keeper.is_removed")
@in_keeper
def death_takes_what_messages_have(is_removed):
    """The names that an ended process held go, though a message of it has them."""
    import __main__ as keeper

    keeper.is_locked = lambda locks, byte: False
    return is_removed


@mutant(
    "maker_alone_is_counted",
    "MGR-11",
    "FS-8",
    replaces="segments.open_named",
)
def maker_alone_is_counted(open_named):
    """Who receives a name has no lock of its file."""

    def open_unlocked(name):
        owned = open_named(name)
        fcntl.flock(owned.fd, fcntl.LOCK_UN)
        return owned

    return open_unlocked


@mutant(
    "dies_with_its_manager",
    "MGR-12",
    replaces=("names.program.options", "names.program.start_keeper"),
)
def dies_with_its_manager(options, start_keeper):
    """A process that has shared ends when its manager does."""
    passed = []

    def options_with_a_pipe(program, presence):
        found = options(program, presence)
        return found | {"pass_fds": [*found["pass_fds"], *passed]}

    def die_with(ours):
        os.read(ours, 1)
        os._exit(1)

    def start_and_watch(program):
        ours, theirs = os.pipe()
        passed[:] = [theirs]
        start_keeper(program)
        os.close(theirs)
        threading.Thread(target=die_with, args=(ours,), daemon=True).start()

    return options_with_a_pipe, start_and_watch


@mutant("aborts_without_its_manager", "MGR-13", replaces="names.program.start_keeper")
def aborts_without_its_manager(start_keeper):
    """A process that finds its manager gone when it shares aborts."""
    started = []

    def start_or_abort(name):
        if started:
            os.abort()
        started.append(name)
        start_keeper(name)

    return start_or_abort


@mutant("manager_has_no_successor", "MGR-14", replaces="names.program.start_keeper")
def manager_has_no_successor(start_keeper):
    """The place of a manager that was killed stays empty."""
    return replaced_at_most(0, start_keeper)


@mutant("successor_has_no_successor", "MGR-14", replaces="names.program.start_keeper")
def successor_has_no_successor(start_keeper):
    """A process has another manager once, and no third one."""
    return replaced_at_most(1, start_keeper)


def replaced_at_most(times, start_keeper):
    """Return a function that starts a keeper once, and so many times again."""
    from sharedtensor.errors import ManagerError

    started = []

    def start(name):
        if len(started) > times:
            raise ManagerError("the manager was killed")
        started.append(name)
        start_keeper(name)

    return start


@mutant("successor_hears_of_what_is_held", "MGR-13", replaces="names.program._leave")
def successor_hears_of_what_is_held(leave):
    """Who exits without its manager does not see that there is another one."""
    return lambda: None


@mutant("successor_forgets_the_silent", "MGR-14", replaces="names.keeper.keep")
@in_keeper
def successor_forgets_the_silent(keep):
    """A successor removes the names that it finds when it begins."""
    import __main__ as keeper

    def forget_and_keep(program, locks, grace, presence):
        for name in os.listdir("/dev/shm"):
            if keeper.program_of(name) == program:
                os.unlink(f"/dev/shm/{name}")
        keep(program, locks, grace, presence)

    return forget_and_keep


@mutant("managers_have_one_place", "MGR-17", replaces="names.program.has_keeper")
def managers_have_one_place(has_keeper):
    """The first process that needs a manager starts one, and others rely on that."""
    own = []

    def has_keeper_or_is_late(program):
        place = os.path.join(os.environ["TMPDIR"], "sharedtensor-manager-0")
        if not own:
            try:
                os.mkdir(place)
            except FileExistsError:
                return True
            own.append(program)
        return has_keeper(program)

    return has_keeper_or_is_late


@mutant("failed_start_is_final", "MGR-19", replaces="names.program.start_keeper")
def failed_start_is_final(start_keeper):
    """A process whose manager could not be started does not try again."""
    failed = []

    def start_once(program):
        if failed:
            raise failed[0]
        try:
            start_keeper(program)
        except Exception as error:
            failed.append(error)
            raise

    return start_once


@mutant(
    "release_waits_for_the_manager",
    "MGR-18",
    replaces="names.program.remove_unless_held",
)
def release_waits_for_the_manager(remove_unless_held):
    """Who drops a tensor that only it holds waits until the manager has removed it."""

    def wait_until_removed(name):
        path = f"/dev/shm/{name}"
        while os.path.exists(path) and is_free(path):
            time.sleep(0.01)

    return wait_until_removed


def is_free(path):
    """Return whether no process has a lock of a file."""
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(fd)


@mutant(
    "manager_misses_the_end_of_clients",
    "FS-9",
    "MGR-10",
    "LIFE-8",
    replaces="names.keeper.is_removed",
)
@in_keeper
def manager_misses_the_end_of_clients(is_removed):
    """The manager removes no name while the process that made it runs."""

    def is_removed_with_its_maker(name, locks):
        maker = name.split("-")[1]
        return not os.path.exists(f"/proc/{maker}") and is_removed(name, locks)

    return is_removed_with_its_maker


@mutant(
    "release_is_told_once",
    "MGR-18",
    replaces=("names.program.remove_unless_held", "names.keeper.keep"),
)
def release_is_told_once(remove_unless_held, keep):
    """The manager removes what is dropped, but for what was while it was stopped."""
    return (lambda name: None), in_keeper(forgets_while_it_is_stopped)(keep)


def forgets_while_it_is_stopped(keep):
    """Return a `keep` that leaves the names that it finds after a stop."""
    import signal

    import __main__ as keeper

    forgotten, remove = set(), keeper.is_removed

    def forget(*ignored):
        forgotten.update(os.listdir("/dev/shm"))

    signal.signal(signal.SIGCONT, forget)
    keeper.is_removed = lambda *given: given[0] not in forgotten and remove(*given)
    return keep


@mutant(
    "sharing_alone_tells_of_before",
    "MGR-18",
    replaces=(
        "names.program.remove_unless_held",
        "names.program.new_token",
        "names.keeper.is_removed",
    ),
)
def sharing_alone_tells_of_before(remove_unless_held, new_token, is_removed):
    """What a process dropped is removed when it shares again."""
    dropped = []

    def new_token_and_remove():
        while dropped:
            remove_unless_held(dropped.pop())
        return new_token()

    keeping = in_keeper(manager_misses_the_end_of_clients.__wrapped__)(is_removed)
    return dropped.append, new_token_and_remove, keeping


@mutant(
    "names_of_a_second_time_are_not_told",
    "MGR-2",
    replaces=("names.program.new_token", "strategies.FileSystem.release"),
)
def names_of_a_second_time_are_not_told(new_token, release):
    """Once a process has dropped all, its names are of a program without a manager."""
    held, dropped_all = set(), []

    def new_token_of_nobody():
        token = new_token()
        if dropped_all:
            token = token[:8] + os.urandom(6).hex() + token[20:]
        held.add(token)
        return token

    def release_and_count(self, segment):
        release(self, segment)
        token = segment.token.rpartition("-")[2]
        if token in held:
            held.discard(token)
            dropped_all.extend([] if held else [True])

    return new_token_of_nobody, release_and_count
