"""Chapter MGR: the manager, a daemon that removes names which no process can use."""

import contextlib
import errno
import fcntl
import os
import random
import signal
import socket
import tempfile
import termios
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sharedtensor_conformance.chapters.env_actions import forbid
from sharedtensor_conformance.chapters.message_actions import (
    get_messages_of_sizes,
    put_messages_of_sizes,
)
from sharedtensor_conformance.chapters.process_actions import (
    close_descriptor,
    ignore_signal,
    open_pipe,
    set_interpreter,
    set_umask,
)
from sharedtensor_conformance.chapters.shared_steps import (
    all_strategies,
    check_shared_memory,
    confine,
    files_of_storages,
    kill_managers,
    strategy_set,
    unthreaded_channel,
    wait_for_all,
)
from sharedtensor_conformance.chapters.system_changes import replace_segment
from sharedtensor_conformance.chapters.tensor_actions import (
    drop_others,
    make_long,
    make_many,
    share_each,
)
from sharedtensor_conformance.harness import attempt, check, clause, eventually
from sharedtensor_conformance.harness.case.listening import listener
from sharedtensor_conformance.harness.case.outcomes import Unsupported
from sharedtensor_conformance.harness.kernel import process_tree
from sharedtensor_conformance.harness.kernel.process_tree import wait_until
from sharedtensor_conformance.harness.supervisor.stage_folder import folder_for_sockets
from sharedtensor_conformance.report.verdicts import Need

LONGEST_ADDRESS = 107
"""The number of bytes of a path that fit into the address of a socket: unix(7)."""

LONG_NAME_SIZE = 120
"""The length in bytes of a directory's name: longer than the address of a socket."""

FASTEST_START: dict[str, Any] = {"vary": (), "prefers": "fork"}
"""For tests whose result does not depend on the start method: the fastest is used."""

NO_FORK_SERVER = ("fork", "spawn")
"""The start methods without a fork server. The standard library puts the socket of a
fork server into the directory for temporary files.
"""

EXTREME_UMASKS = (0o000, 0o777)
"""The two extreme umasks: no permission is masked, and all are."""

LARGE_LENGTH = 1 << 20
"""The number of elements of a tensor of 4 MiB."""

MEBIBYTE = 1 << 20

SO_SNDBUFFORCE = 32
"""The option to set a buffer beyond the limit of the system: socket(7)."""

STRANGER_TIMEOUT = 2.0
"""The number of seconds that a stranger waits for the manager to read."""

FLOOD_MESSAGES = 2000
"""The number of messages of a stranger that reads no answer."""

MANY_NAMES = 600
"""The number of names that a process drops. A message for each would fill a socket."""

MANAGERS_KILLED = 3
"""The number of managers of one program that are killed one after the other."""

IDLE_SECONDS = 1.5
"""The number of seconds in which a manager without clients may end; it need not."""

SILENT_CONNECTIONS = 200
"""The number of connections that strangers leave open."""


def share_one(actor, values):
    """Make `actor` share a new tensor; return the tensor."""
    tensor = actor.make(values)
    tensor.share()
    return tensor


def share_and_send(one, other):
    """Make `one` share a tensor and send it to `other`; return both tensors."""
    tensor = share_one(one, [25, 26, 27])
    arrived = one.send(tensor, other)
    tensor.write(1, 28)
    check.equal(arrived.values(), [25, 28, 27], "sharing and sending work")
    return tensor, arrived


SHOWN_NAMES = 3
"""The number of names that the evidence shows, where there are more."""


def wait_until_removed(stage, fresh, names, sentence):
    """Wait until the `names` are removed, except those that may be kept for later use.

    `sentence` describes this state, for the evidence.
    """
    there = lambda: sorted(names & fresh.ledger.segments())  # noqa: E731
    gone = lambda: len(there()) <= fresh.kept  # noqa: E731
    found = lambda: first_names(there(), len(names))  # noqa: E731
    eventually(gone, sentence, within=stage.grace, found=found)


def first_names(there, count):
    """Return the names that are there; of many, the first ones and how many of all."""
    if len(there) <= SHOWN_NAMES:
        return there
    return [*there[:SHOWN_NAMES], f"{len(there)} of {count}"]


def wait_until_managers_end(stage, fresh):
    """Wait until the managers of the stage have ended."""
    ended = lambda: not fresh.ledger.managers()  # noqa: E731
    eventually(ended, "the manager has ended", within=stage.grace)


def kill_all_and_wait(stage, fresh):
    """Kill all actors, and wait until their names are removed."""
    for actor in reversed(fresh.running()):
        if actor.is_alive():
            actor.kill()
    wait_until_removed(stage, fresh, fresh.ledger.segments(), "the names are removed")


@contextlib.contextmanager
def stage_before_manager(stage, strategy):
    """Yield a stage whose owner and peer run, before a manager has been started."""
    with stage.fresh(enter=False) as fresh:
        for actor in (fresh.owner, fresh.peer):
            check.equal(actor.make([1, 2]).values(), [1, 2], "both run")
        fresh.owner.module.set_sharing_strategy(strategy)
        check.equal(fresh.ledger.managers(), [], "there is no manager yet")
        yield fresh


@clause("MGR-1", profiles=("share",), isolated=True, vary=("strategy", "start_method"))
def test_manager_has_a_process_group_of_its_own(stage):
    """The owner shares a tensor; the process groups of all are compared."""
    with stage.fresh() as fresh:
        tensor = share_one(fresh.owner, [1, 2, 3])
        arrived = fresh.owner.send(tensor, fresh.peer)
        check.equal(arrived.values(), [1, 2, 3], "the peer uses it too")
        managers = fresh.ledger.managers()
        check(managers, "there is a manager")
        users = {actor.pid for actor in (fresh.owner, fresh.peer)}
        groups = {os.getpgid(pid) for pid in users}
        for manager in managers:
            check(manager["group"] not in groups, "its process group is its own")


@clause("MGR-2", profiles=("share",), isolated=True, vary=("strategy", "start_method"))
def test_manager_removes_the_names_of_killed_clients(stage):
    """All three share tensors and one is in flight; all are killed."""
    with stage.fresh() as fresh:
        actors = [fresh.owner, fresh.peer, fresh.bystander]
        tensors = [share_one(actor, [4, 5, 6]) for actor in actors]
        arrived = fresh.peer.send(tensors[1], fresh.bystander)
        check.equal(arrived.values(), [4, 5, 6], "a tensor is held by two")
        fresh.peer.put(tensors[1], fresh.owner)
        check(len(fresh.ledger.segments()) >= 3, "the names are there")
        for actor in reversed(actors):
            actor.kill()
        gone = lambda: not fresh.ledger.segments()  # noqa: E731
        eventually(gone, "the names are removed", within=stage.grace)


@clause("MGR-2", "MGR-3", profiles=("share",), prefers="fork", isolated=True)
def test_name_that_was_replaced_keeps_no_other_name(stage):
    """Of eight files one is replaced by a link, then all are killed.

    The link is another program's, so it may stay.
    """
    with stage.fresh() as fresh:
        held = [share_large(fresh.owner) for _ in range(8)]
        for tensor in held:
            check.equal(tensor.read(0), 18, "the owner has its tensors")
        replaced, *others = sorted(fresh.ledger.segments())
        replace_segment(fresh, replaced, "link")
        kill_all(fresh)
        gone = lambda: not fresh.ledger.segments() & {*others}  # noqa: E731
        eventually(gone, "the other names are removed", within=stage.grace)
        ended = lambda: not fresh.ledger.managers()  # noqa: E731
        eventually(ended, "the manager ends", within=stage.grace)


@clause("MGR-2", profiles=("share",), vary=(), isolated=True)
def test_manager_removes_the_names_when_its_starter_is_killed_first(stage):
    """The owner starts the manager and is killed; the peer goes on, and is killed."""
    with stage.fresh() as fresh:
        share_one(fresh.owner, [7, 8, 9])
        held = share_one(fresh.peer, [10, 11, 12])
        fresh.owner.kill()
        later = share_one(fresh.peer, [13, 14, 15])
        for tensor, values in ((held, [10, 11, 12]), (later, [13, 14, 15])):
            check.equal(tensor.values(), values, "the peer has its tensors")
        fresh.peer.kill()
        gone = lambda: not fresh.ledger.segments()  # noqa: E731
        eventually(gone, "the names are removed", within=stage.grace)


def share_large(actor):
    """Make `actor` share a new tensor of 4 MiB; return the tensor.

    A segment of this size is not kept for later use.
    """
    tensor = actor.run(make_long, 1 << 20, 18)
    tensor.share()
    return tensor


@clause("MGR-2", profiles=("share",), vary=(), prefers="fork", isolated=True)
def test_manager_removes_the_names_of_clients_that_had_dropped_all(stage):
    """Owner and peer share, drop all, share again, and are killed.

    A manager that has nothing left to keep may end, and is given the time to.
    """
    with stage.fresh() as fresh:
        actors = (fresh.owner, fresh.peer)
        tensors = [share_large(actor) for actor in actors]
        arrived = fresh.owner.send(tensors[0], fresh.peer)
        names = fresh.ledger.segments()
        check(names, "the names are there")
        for dropped in (*tensors, arrived):
            dropped.drop()
        wait_until_removed(stage, fresh, names, "the names are removed")
        wait_until(lambda: not fresh.ledger.managers(), IDLE_SECONDS)
        again = [share_large(actor) for actor in actors]
        check.equal([tensor.read(0) for tensor in again], [18, 18], "sharing works")
        check(fresh.ledger.segments(), "there are names again")
        kill_all_and_wait(stage, fresh)


def exit_all(fresh):
    """Make all actors of the stage exit normally."""
    for actor in (fresh.peer, fresh.bystander, fresh.owner):
        actor.leave()


def kill_all(fresh):
    """Kill all actors of the stage."""
    for actor in (fresh.owner, fresh.bystander, fresh.peer):
        actor.kill()


def check_manager_ends(stage, end):
    """Share tensors on a stage, end its actors by `end`; check that the manager ends.

    Check that the manager's socket and directory are removed, too.
    """
    with stage.fresh() as fresh:
        actors = (fresh.owner, fresh.peer, fresh.bystander)
        tensors = [share_one(actor, [16, 17, 18]) for actor in actors]
        check.equal(tensors[2].values(), [16, 17, 18], "the tensors are shared")
        managers = fresh.ledger.managers()
        check(managers, "there is a manager")
        sockets = [path for manager in managers for path in manager["sockets"]]
        paths = [path for path in sockets if path.startswith("/")]
        temporary = str(fresh.supervision.temporary)
        folders = {os.path.dirname(path) for path in paths} - {temporary}
        end(fresh)
        wait_until_managers_end(stage, fresh)
        left = [path for path in (*paths, *folders) if os.path.lexists(path)]
        check.equal(left, [], "its socket and directory are removed")


@clause("MGR-3", profiles=("share",), isolated=True, vary=("strategy", "start_method"))
def test_manager_goes_away_after_its_users_have_left(stage):
    """All users of the manager exit normally while they hold tensors."""
    check_manager_ends(stage, exit_all)


@clause("MGR-3", profiles=("share",), isolated=True, vary=("strategy", "start_method"))
def test_manager_goes_away_after_its_users_were_killed(stage):
    """All users of the manager are killed while they hold tensors."""
    check_manager_ends(stage, kill_all)


@clause("MGR-4", profiles=("share",), isolated=True)
def test_manager_holds_no_pipe_of_the_process_that_started_it(stage):
    """The owner opens a pipe, starts the manager, and the pipe's holders are listed."""
    with stage.fresh(alone=True) as fresh:
        fresh.owner.run(open_pipe)
        pipes = {name for name in fresh.owner.targets() if name.startswith("pipe:")}
        check(pipes, "the owner has a pipe open")
        check.equal(fresh.ledger.managers(), [], "no manager has been started")
        tensor = share_one(fresh.owner, [19, 20, 21])
        check.equal(tensor.values(), [19, 20, 21], "the tensor is shared")
        managers = fresh.ledger.managers()
        check(managers, "there is a manager")
        for manager in managers:
            held = pipes & set(manager["descriptors"])
            check.equal(held, set(), "the manager holds no pipe of the owner's")


@clause("MGR-4", profiles=("share",), isolated=True)
def test_manager_holds_no_socket_of_the_process_that_started_it(stage):
    """The sockets that the owner had before are compared with the manager's."""
    with stage.fresh() as fresh:
        fresh.owner.make([1, 2])
        sockets = {name for name in fresh.owner.targets() if "socket:" in name}
        check(sockets, "the owner has a socket open")
        tensor = share_one(fresh.owner, [22, 23, 24])
        check.equal(tensor.values(), [22, 23, 24], "the tensor is shared")
        managers = fresh.ledger.managers()
        check(managers, "there is a manager")
        for manager in managers:
            held = sockets & set(manager["descriptors"])
            check.equal(held, set(), "the manager holds no socket of the owner's")


@clause("MGR-4", profiles=("share",), **FASTEST_START, isolated=True)
def test_manager_holds_no_standard_stream_of_the_process_that_started_it(stage):
    """The owner's output goes to a file, which the manager has no descriptor of."""
    with stage.fresh() as fresh:
        tensor = share_one(fresh.owner, [29, 30, 31])
        check.equal(tensor.values(), [29, 30, 31], "the tensor is shared")
        output = str(fresh.supervision.log)
        check(
            output in fresh.owner.targets(),
            "the owner's output goes to a file",
        )
        managers = fresh.ledger.managers()
        check(managers, "there is a manager")
        for manager in managers:
            check(output not in manager["descriptors"], "the manager's does not")


@clause("MGR-5", profiles=("share", "strategies"), **FASTEST_START, isolated=True)
def test_manager_is_started_when_it_is_first_needed(stage, strategy):
    """The owner makes tensors, shares under other strategies, and then under this."""
    with stage_before_manager(stage, strategy) as fresh:
        tensor = fresh.owner.make([32, 33, 34])
        others = set(all_strategies(fresh.owner)) - {strategy}
        for other in sorted(others):
            with strategy_set(fresh.owner, other):
                share_one(fresh.owner, [35, 36])
        check.equal(fresh.ledger.managers(), [], "nobody has needed a manager yet")
        tensor.share()
        check.equal(tensor.values(), [32, 33, 34], "the tensor is shared by name")
        check(fresh.ledger.managers(), "now there is one")


@clause("MGR-5", profiles=("share", "strategies"), **FASTEST_START, isolated=True)
def test_sending_what_was_shared_under_another_strategy_starts_no_manager(
    stage, strategy
):
    """The owner shares under other strategies; it sends, and the peer sends back."""
    with stage_before_manager(stage, strategy) as fresh:
        owner, peer = fresh.owner, fresh.peer
        others = sorted(set(all_strategies(owner)) - {strategy})
        peer.module.set_sharing_strategy(strategy)
        for other in others:
            with strategy_set(owner, other):
                tensor = share_one(owner, [35, 36])
            back = peer.send(owner.send(tensor, peer), owner)
            check.equal(back.values(), [35, 36], "it arrives")
        check.equal(fresh.ledger.managers(), [], "nobody has needed a manager")


ONE_WAY_CHANNELS = ("pipe",)
"""The channels on which the second process cannot send back."""

PLAIN_SIZES = [0, 100, 10_000, 100_000, 1_000_000]
"""The sizes in bytes of messages without a tensor. Some do not fit into one packet."""


@clause("MGR-5", profiles=("strategies",), **FASTEST_START, isolated=True)
def test_messages_without_tensors_start_no_manager(stage, strategy):
    """Owner and child send each other bytes of all sizes; nobody shares a tensor."""
    with stage_before_manager(stage, strategy) as fresh:
        kinds = stage.implementation.channels
        others = sorted(set(all_strategies(fresh.owner)) - {strategy})
        with strategy_set(fresh.owner, others[0]):
            channels = [fresh.owner.open_channel(kind) for kind in kinds]
            child = fresh.owner.start_peer(arguments=channels, enter=False)
        child.module.set_sharing_strategy(strategy)
        for channel, kind in zip(channels, kinds, strict=True):
            pairs = [(fresh.owner, child), (child, fresh.owner)]
            for sender, receiver in pairs[: 1 if kind in ONE_WAY_CHANNELS else 2]:
                arguments = channel, None, PLAIN_SIZES
                sent = receiver.start(get_messages_of_sizes, *arguments)
                sender.run(put_messages_of_sizes, *arguments)
                check.equal(sent.answer(), [], "each message arrives as it was sent")
        check.equal(fresh.ledger.managers(), [], "nobody has needed a manager")


@clause("MGR-6", profiles=("share", "strategies"), **FASTEST_START, isolated=True)
def test_process_without_standard_streams_is_served(stage, strategy):
    """The owner closes its standard streams, and starts the manager then."""
    with stage_before_manager(stage, strategy) as fresh:
        for descriptor in range(3):
            fresh.owner.run(close_descriptor, descriptor)
        share_and_send(fresh.owner, fresh.peer)
        share_and_send(fresh.peer, fresh.owner)
        kill_all_and_wait(stage, fresh)


def check_sharing_in(stage, folder):
    """Share tensors while `folder` is the directory for temporary files.

    Then kill all actors, and wait until their names and the manager are gone. Return
    the paths of the manager's sockets.
    """
    with stage.fresh(environment={"TMPDIR": str(folder)}) as fresh:
        share_and_send(fresh.owner, fresh.peer)
        managers = fresh.ledger.managers()
        check(managers, "there is a manager")
        kill_all_and_wait(stage, fresh)
        wait_until_managers_end(stage, fresh)
    return [path for manager in managers for path in manager["sockets"]]


@clause(
    "MGR-7",
    profiles=("share",),
    **FASTEST_START,
    start_methods=NO_FORK_SERVER,
    isolated=True,
)
def test_manager_works_under_a_directory_with_a_long_path(stage):
    """The directory's path is longer than the address of a socket can be."""
    with tempfile.TemporaryDirectory(prefix="sts-") as short:
        folder = Path(short, "long" * (LONG_NAME_SIZE // 4))
        folder.mkdir()
        check_sharing_in(stage, folder)
        check.equal(list(folder.iterdir()), [], "nothing is left in the directory")


@clause(
    "MGR-7",
    profiles=("share",),
    **FASTEST_START,
    start_methods=NO_FORK_SERVER,
    isolated=True,
)
def test_manager_works_under_a_directory_whose_path_is_almost_too_long(stage):
    """The directory's path can be a socket's address, and what lies in it cannot.

    Then the path of the manager's socket is as long as an address can be, and longer by
    one byte, if its socket lies in the directory.
    """
    with tempfile.TemporaryDirectory(prefix="sts-", dir=folder_for_sockets()) as short:
        sockets = check_sharing_in(stage, short)
        below = {
            len(os.fsencode(path)) - len(short)
            for path in sockets
            if path.startswith(short)
        }
        exact = {LONGEST_ADDRESS + more - size for size in below for more in (0, 1)}
        for length in sorted({LONGEST_ADDRESS, *exact}):
            if (rest := length - len(short) - 1) > 0:
                folder = Path(short, rest * "x")
                folder.mkdir()
                check_sharing_in(stage, folder)
                check.equal(list(folder.iterdir()), [], "nothing is left in it")


@clause(
    "MGR-7",
    profiles=("share",),
    **FASTEST_START,
    start_methods=NO_FORK_SERVER,
    isolated=True,
)
def test_manager_works_under_a_directory_with_a_name_of_any_letters(stage):
    """The directory's name has a space, a quote, a newline and letters of all kinds."""
    # Not in pytest's directory: a long path would change the result, not the letters.
    with tempfile.TemporaryDirectory(prefix="sts-", dir=folder_for_sockets()) as short:
        folder = Path(short, "a b'\n\u00e9\u4e2d")
        folder.mkdir()
        check_sharing_in(stage, folder)
        check.equal(list(folder.iterdir()), [], "nothing is left in the directory")


@clause("MGR-8", profiles=("share",), **FASTEST_START, isolated=True)
def test_manager_does_without_a_directory_that_is_missing(stage):
    """The directory for temporary files has been removed."""
    with tempfile.TemporaryDirectory(prefix="sts-") as folder:
        check_sharing_in(stage, Path(folder, "gone"))


@clause("MGR-8", profiles=("share",), **FASTEST_START, isolated=True)
def test_manager_does_without_a_directory_that_is_a_file(stage):
    """The directory for temporary files is a file."""
    with tempfile.NamedTemporaryFile(prefix="sts-") as file:
        check_sharing_in(stage, Path(file.name))


@clause("MGR-9", profiles=("share", "strategies"), **FASTEST_START, isolated=True)
def test_umask_does_not_matter(stage, strategy):
    """Owner and peer mask nothing or everything before the manager is started."""
    for mask in EXTREME_UMASKS:
        with stage_before_manager(stage, strategy) as fresh:
            for actor in (fresh.owner, fresh.peer):
                actor.run(set_umask, mask)
            share_and_send(fresh.owner, fresh.peer)
            share_and_send(fresh.peer, fresh.owner)
            names = fresh.ledger.segments()
            check(names, "the names are there")
            for name in names:
                mode = fresh.ledger.segment_status(name)["mode"]
                check.equal(mode & 0o600, 0o600, "its user may read and write the file")
            kill_all_and_wait(stage, fresh)


@clause("MGR-10", profiles=("share",), **FASTEST_START, isolated=True)
def test_names_of_a_killed_client_go_while_others_live(stage):
    """The peer shares, sends and receives, and is killed; the bystander uses names."""
    with stage.fresh() as fresh:
        owner, peer, bystander = fresh.owner, fresh.peer, fresh.bystander
        kept = share_and_send(owner, bystander)
        names = fresh.ledger.segments()
        alone = [share_one(peer, [number, 37]) for number in range(5)]
        passed = share_one(owner, [38, 39, 40])
        held = owner.send(passed, peer)
        passed.drop()
        for tensor in (*alone, held):
            check.equal(tensor.read(0), tensor.values()[0], "the peer holds it")
        lost = files_of_storages(fresh, names, 6)
        peer.kill()
        share_and_send(bystander, owner)
        wait_until_removed(
            stage, fresh, lost, "the names that the peer held are removed"
        )
        check(names <= fresh.ledger.segments(), "the names that others hold are not")
        check.equal(kept[1].values(), [25, 28, 27], "and have their values")


@clause("MGR-10", profiles=("share",), **FASTEST_START, isolated=True)
def test_names_in_messages_of_a_killed_client_go_when_they_were_received(stage):
    """The peer puts two tensors and is killed; the owner gets them and drops them."""
    with stage.fresh() as fresh:
        owner, peer, channel = fresh.owner, fresh.peer, unthreaded_channel(fresh)
        kept = share_and_send(owner, fresh.bystander)
        names = fresh.ledger.segments()
        for number in range(2):
            peer.put(share_one(peer, [number, 37]), owner, channel)
        lost = files_of_storages(fresh, names, 2)
        peer.kill()
        for number in range(2):
            arrived = owner.get(peer, channel)
            check.equal(arrived.values(), [number, 37], "it can be received")
            arrived.drop()
        wait_until_removed(stage, fresh, lost, "their names are removed")
        check.equal(kept[1].values(), [25, 28, 27], "what others hold has its values")


@clause("MGR-10", profiles=("share",), **FASTEST_START, isolated=True)
def test_names_that_others_made_go_with_the_client_that_held_them_last(stage):
    """The owner makes large tensors, which only the peer holds when it is killed.

    They are more than may be kept.
    """
    with stage.fresh() as fresh:
        owner, peer = fresh.owner, fresh.peer
        kept = share_and_send(owner, fresh.bystander)
        before, held = fresh.ledger.segments(), []
        for number in range(fresh.kept + 2):
            tensor = owner.run(make_long, LARGE_LENGTH, number)
            held.append(owner.send(tensor, peer))
            tensor.drop()
        found = [tensor.read(LARGE_LENGTH - 1) for tensor in held]
        check.equal(found, list(range(len(held))), "the peer holds them")
        lost = fresh.ledger.segments() - before
        check(lost, "they have names")
        peer.kill()
        wait_until_removed(
            stage, fresh, lost, "the names that the peer held are removed"
        )
        check.equal(kept[1].values(), [25, 28, 27], "what others hold has its values")


@clause("MGR-11", profiles=("share",), vary=(), isolated=True)
def test_end_of_a_client_takes_nothing_from_the_others(stage):
    """The owner starts the manager, sends to the peer, and is killed; so others do."""
    with stage.fresh() as fresh:
        owner, peer, bystander = fresh.owner, fresh.peer, fresh.bystander
        tensor = share_one(bystander, [41, 42, 43])
        first = bystander.send(tensor, peer)
        second = share_and_send(owner, peer)[1]
        names = fresh.ledger.segments()
        owner.kill()
        check(names <= fresh.ledger.segments(), "the names of the killed owner's stay")
        third = peer.send(second, bystander)
        bystander_holds = [tensor.values(), third.values()]
        check.equal(bystander_holds, [[41, 42, 43], [25, 28, 27]], "all can be used")
        bystander.leave()
        check(names <= fresh.ledger.segments(), "the names of the one that left stay")
        check.equal(first.values(), [41, 42, 43], "the last one has the values")
        peer.kill()
        wait_until_removed(stage, fresh, names, "the names go with the last")


@clause("MGR-11", profiles=("share",), vary=(), start_methods=("fork",))
def test_end_of_a_child_takes_nothing_from_its_parent(owner, bystander, stage):
    """Children inherit a tensor by fork; one is killed and one exits."""
    before = stage.ledger.segments()
    tensor = share_one(owner, [44, 45, 46])
    names = stage.ledger.segments() - before
    for end in ("kill", "leave"):
        child = owner.start_peer([tensor], start_method="fork")
        check.equal(child.arguments[0].values(), [44, 45, 46], "the child has it")
        getattr(child, end)()
        stage.end_extra()
        check(names <= stage.ledger.segments(), "the name stays")
        arrived = owner.send(tensor, bystander)
        check.equal(arrived.values(), [44, 45, 46], "the parent can send it")
        arrived.drop()
    tensor.drop()
    wait_until_removed(stage, stage, names, "the name goes with the parent's tensor")


@clause("MGR-11", profiles=("share",), vary=(), start_methods=("fork",), isolated=True)
def test_end_of_a_parent_takes_nothing_from_its_child(stage):
    """A child inherits a tensor by fork; the parent is killed."""
    with stage.fresh() as fresh:
        tensor = share_one(fresh.owner, [47, 48, 49])
        names = fresh.ledger.segments()
        child = fresh.owner.start_peer([tensor], start_method="fork")
        inherited = child.arguments[0]
        fresh.owner.kill()
        later = share_one(child, [50, 51])
        check.equal(later.values(), [50, 51], "the child is served")
        check.equal(inherited.values(), [47, 48, 49], "the child has the values")
        check(names <= fresh.ledger.segments(), "the name stays")
        child.kill()
        wait_until_removed(
            stage, fresh, fresh.ledger.segments(), "the names go with the child"
        )


def check_nothing_left(fresh):
    """Wait until no segment, no process and no temporary file is left."""
    left = fresh.ledger.left_behind
    eventually(lambda: not left(), "nothing is left", fresh.grace, found=left)


def check_all_exit(fresh):
    """Make all running actors exit normally, the owner last."""
    for actor in reversed(fresh.running()):
        check.equal(actor.leave(), 0, "the process exits normally")


@clause("MGR-12", profiles=("share",), **FASTEST_START, isolated=True)
def test_tensors_outlive_their_manager(stage):
    """The manager is killed while owner and peer hold tensors of one another's."""
    with stage.fresh() as fresh:
        pairs = [
            share_and_send(fresh.owner, fresh.peer),
            share_and_send(fresh.peer, fresh.owner),
        ]
        kill_managers(stage, fresh)
        for number, (tensor, arrived) in enumerate(pairs):
            check.equal(tensor.values(), [25, 28, 27], "the sender has the values")
            arrived.write(0, 52 + number)
            check.equal(tensor.read(0), 52 + number, "and sees the receiver's write")
            tensor.write(2, 54)
            check.equal(arrived.read(2), 54, "and the receiver the sender's")


@clause("MGR-13", profiles=("share",), **FASTEST_START, isolated=True)
def test_process_without_its_manager_gets_an_exception_at_worst(stage):
    """The manager is killed; then the owner shares, sends and drops, and exits."""
    channel = unthreaded_channel(
        stage
    )  # sends in the calling thread, which gets the exception
    with stage.fresh() as fresh:
        owner, peer = fresh.owner, fresh.peer
        before, arrived = share_and_send(owner, peer)
        kill_managers(stage, fresh)
        later, _ = attempt(lambda: share_one(owner, [55, 56, 57]))
        for tensor, values in ((before, [25, 28, 27]), (later, [55, 56, 57])):
            if tensor is not None:
                sent, _ = attempt(lambda sent=tensor: owner.send(sent, peer, channel))
                got = None if sent is None else sent.values()
                check(got in (None, values), "it arrives with its values or not at all")
                attempt(tensor.drop)
        attempt(arrived.drop)
        check(owner.is_alive() and peer.is_alive(), "both go on")
        check_all_exit(fresh)


@clause("MGR-14", profiles=("share",), **FASTEST_START, isolated=True)
def test_manager_that_was_killed_is_replaced(stage):
    """The manager is killed; sharing and sending go on, and all exit normally."""
    with stage.fresh() as fresh:
        owner, peer = fresh.owner, fresh.peer
        before, arrived = share_and_send(owner, peer)
        kill_managers(stage, fresh)
        share_and_send(owner, peer)
        share_and_send(peer, owner)
        check.equal(owner.send(before, peer).values(), [25, 28, 27], "as from before")
        onward = peer.send(arrived, owner)
        check.equal(onward.values(), [25, 28, 27], "in both directions")
        check_all_exit(fresh)


@clause("MGR-14", profiles=("share",), **FASTEST_START, isolated=True)
def test_manager_that_was_killed_is_replaced_every_time(stage):
    """The manager is killed, and twice its successor; sharing and sending go on."""
    with stage.fresh() as fresh:
        owner, peer = fresh.owner, fresh.peer
        before, _ = share_and_send(owner, peer)
        for _ in range(MANAGERS_KILLED):
            kill_managers(stage, fresh)
            share_and_send(owner, peer)
            share_and_send(peer, owner)
            arrived = owner.send(before, peer)
            check.equal(arrived.values(), [25, 28, 27], "as from before")
        check_all_exit(fresh)


@clause("MGR-13", profiles=("share",), **FASTEST_START, isolated=True)
def test_successor_of_a_killed_manager_leaves_nothing_behind(stage):
    """The manager is killed; who can goes on to share; all exit normally."""
    with stage.fresh() as fresh:
        owner, peer = fresh.owner, fresh.peer
        share_and_send(owner, peer)
        kill_managers(stage, fresh)
        for sender, receiver in ((owner, peer), (peer, owner)):
            attempt(lambda s=sender, r=receiver: share_and_send(s, r))
        check_all_exit(fresh)
        check_nothing_left(fresh)


@clause("MGR-13", profiles=("share",), **FASTEST_START, isolated=True)
def test_killed_manager_leaves_nothing_behind(stage):
    """The manager is killed, and its clients exit normally without another word."""
    with stage.fresh() as fresh:
        share_and_send(fresh.owner, fresh.peer)
        kill_managers(stage, fresh)
        check_all_exit(fresh)
        check_nothing_left(fresh)


@clause("MGR-13", profiles=("share",), **FASTEST_START, isolated=True)
def test_last_process_leaves_nothing_behind_without_a_manager(stage):
    """Others exit, the manager is killed, the owner exits with a message unread."""
    with stage.fresh() as fresh:
        owner = fresh.owner
        share_and_send(owner, fresh.peer)
        owner.put(share_one(owner, [85, 86]), fresh.peer)
        for other in fresh.running()[:0:-1]:
            check.equal(other.leave(), 0, f"{other.name} exits normally")
        kill_managers(stage, fresh)
        check_all_exit(fresh)
        check_nothing_left(fresh)


@clause("MGR-13", profiles=("share",), **FASTEST_START, isolated=True)
def test_what_a_killed_manager_has_not_read_is_not_lost(stage):
    """The manager is stopped; a tensor is put and dropped; the manager is killed."""
    with stage.fresh() as fresh:
        owner, peer = fresh.owner, fresh.peer
        share_and_send(owner, peer)
        with managers_stopped(fresh):
            tensor = share_one(owner, [85, 86])
            owner.put(tensor, peer)
            tensor.drop()
            kill_managers(stage, fresh)
        check_all_exit(fresh)
        check_nothing_left(fresh)


@clause("MGR-14", profiles=("share",), **FASTEST_START, isolated=True)
def test_silent_process_keeps_its_names_when_its_manager_was_killed(stage):
    """The manager is killed; the peer shares and exits; then the owner sends."""
    with stage.fresh() as fresh:
        owner, peer, bystander = fresh.owner, fresh.peer, fresh.bystander
        check.equal(bystander.make([1, 2]).values(), [1, 2], "all run")
        tensor, _ = share_and_send(owner, peer)
        kill_managers(stage, fresh)
        share_one(peer, [85, 86])
        check.equal(peer.leave(), 0, "the peer exits normally")
        # A successor that does not know the owner ends now, and removes its names.
        wait_until(lambda: not fresh.ledger.managers(), stage.grace / 2)
        onward = owner.send(tensor, bystander)
        check.equal(onward.values(), [25, 28, 27], "the owner can still send")
        check_all_exit(fresh)


@clause("MGR-15", profiles=("share",), **FASTEST_START, isolated=True)
def test_signals_to_its_clients_do_not_end_the_manager(stage):
    """The group gets three signals, of which the bystander dies and the others not."""
    numbers = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
    with stage.fresh() as fresh:
        owner, peer, bystander = fresh.owner, fresh.peer, fresh.bystander
        share_and_send(owner, peer)
        names = fresh.ledger.segments()
        share_one(bystander, [58, 59])
        managers = {manager["pid"] for manager in fresh.ledger.managers()}
        for actor in (owner, peer):
            for number in numbers:
                actor.run(ignore_signal, number)
        for number in numbers:
            os.killpg(os.getpgid(owner.pid), number)
        ended = lambda: not bystander.is_alive()  # noqa: E731
        eventually(ended, "the bystander dies", within=stage.grace)
        share_and_send(peer, owner)
        lived = managers & {manager["pid"] for manager in fresh.ledger.managers()}
        check(lived, "the manager lives on")
        check(
            names <= fresh.ledger.segments(),
            "and has removed nothing of the others'",
        )
        kill_all_and_wait(stage, fresh)


def connect(path):
    """Connect to a manager's socket of any type; return None if that is not possible.

    `path` begins with ``@`` for an abstract address.
    """
    address = "\0" + path[1:] if path.startswith("@") else path
    for kind in (socket.SOCK_SEQPACKET, socket.SOCK_STREAM, socket.SOCK_DGRAM):
        stranger = socket.socket(socket.AF_UNIX, kind)
        stranger.settimeout(0.1)
        try:
            stranger.connect(address)
        except OSError:
            stranger.close()
        else:
            stranger.settimeout(0)
            return stranger
    return None


def send_raw(stranger, *messages):
    """Send messages until the manager takes no more."""
    with contextlib.suppress(OSError):
        for message in messages:
            stranger.send(message)


def says_nothing(stranger):
    """Send nothing."""


def sends_half_a_message(stranger):
    """Send three bytes, and no more."""
    send_raw(stranger, b"\0\1\2")


def closes_half_way(stranger):
    """Send one byte, and shut down the sending direction."""
    send_raw(stranger, b"\1")
    stranger.shutdown(socket.SHUT_WR)


def reads_no_answer(stranger):
    """Shut down the receiving direction, and send messages."""
    stranger.shutdown(socket.SHUT_RD)
    send_raw(stranger, *[bytes([number]) * 9 for number in range(256)])


def sends_random_bytes(stranger):
    """Send messages of random bytes, with several lengths."""
    chance = random.Random(60)
    send_raw(stranger, *[chance.randbytes(length) for length in (1, 7, 64, 300, 4096)])


def sends_a_long_message(stranger):
    """Send a message that is much too long."""
    send_raw(stranger, b"H" + bytes(100_000))


def sends_a_mebibyte_at_once(stranger):
    """Send a message of 1 MiB, or the longest that the system lets it send."""
    for option in (SO_SNDBUFFORCE, socket.SO_SNDBUF):  # the first is for root alone
        with contextlib.suppress(OSError):
            stranger.setsockopt(socket.SOL_SOCKET, option, 2 * MEBIBYTE)
            break
    stranger.settimeout(STRANGER_TIMEOUT)
    for size in (MEBIBYTE >> more for more in range(4)):
        try:
            stranger.send(bytes(size))
        except OSError as error:
            if error.errno == errno.EMSGSIZE:
                continue
        break


def sends_a_mebibyte_of_random_bytes(stranger):
    """Send messages of random bytes, and wait when the manager has to read first."""
    stranger.settimeout(STRANGER_TIMEOUT)
    chance = random.Random(61)
    length = 4096
    send_raw(stranger, *[chance.randbytes(length) for _ in range(MEBIBYTE // length)])


def floods(stranger):
    """Send `FLOOD_MESSAGES` messages."""
    send_raw(stranger, *[b"S01234567"] * FLOOD_MESSAGES)


ABUSES = (
    says_nothing,
    sends_half_a_message,
    closes_half_way,
    reads_no_answer,
    sends_random_bytes,
    sends_a_long_message,
    sends_a_mebibyte_at_once,
    sends_a_mebibyte_of_random_bytes,
    floods,
)


def sockets_of(fresh):
    """Return the addresses of the managers' sockets.

    Raises:
        Unsupported: no manager has a socket with an address.
    """
    managers = fresh.ledger.managers()
    paths = [path for manager in managers for path in manager["sockets"]]
    if not paths:
        raise Unsupported("the manager has no socket to connect to")
    return paths


def connect_strangers(paths, strangers, abuse):
    """Connect a stranger to each of the `paths`, let it do `abuse`, and keep it open.

    Args:
        paths: the addresses of the managers' sockets.
        strangers: an `ExitStack` that closes the connections.
        abuse: what a stranger does with its connection.

    Returns:
        The strangers that are connected.
    """
    came = [stranger for stranger in map(connect, paths) if stranger is not None]
    for stranger in came:
        strangers.enter_context(stranger)
        abuse(stranger)
    return came


def require_connection(came):
    """Require that at least one stranger was connected.

    Raises:
        Unsupported: none was.
    """
    if not came:
        raise Unsupported("strangers cannot connect to the manager's socket")


def is_read(stranger):
    """Return whether the manager has read all that a stranger has sent."""
    unread = fcntl.ioctl(stranger, termios.TIOCOUTQ, bytes(4))
    return unread == bytes(4)


def check_clients_served(stage, fresh, abuse):
    """Check that clients can share, send and drop after `abuse`, and names are removed.

    `abuse` says what the stranger did, for the evidence.
    """
    for one, other in (
        (fresh.owner, fresh.peer),
        (fresh.peer, fresh.owner),
    ):
        before = fresh.ledger.segments()
        for tensor in share_and_send(one, other):
            tensor.drop()
        names = fresh.ledger.segments() - before
        wait_until_removed(stage, fresh, names, f"names go though a stranger {abuse}")


@clause("MGR-16", profiles=("share",), **FASTEST_START, isolated=True)
def test_strangers_disturb_nobody(stage):
    """Strangers connect one after another, misbehave and stay; clients are served."""
    with stage.fresh() as fresh, ExitStack() as strangers:
        kept = share_and_send(fresh.owner, fresh.peer)
        names, pids = (
            fresh.ledger.segments(),
            {m["pid"] for m in fresh.ledger.managers()},
        )
        came = []
        for abuse in ABUSES:
            came += connect_strangers(sockets_of(fresh), strangers, abuse)
            check_clients_served(stage, fresh, abuse.__name__.replace("_", " "))
        # A manager that has stopped reading a stranger is not disturbed either.
        wait_until(lambda: all(map(is_read, came)), STRANGER_TIMEOUT)
        check.equal(
            {m["pid"] for m in fresh.ledger.managers()}, pids, "the manager lives on"
        )
        check(
            names <= fresh.ledger.segments(),
            "and has removed nothing of its clients'",
        )
        require_connection(came)
        check.equal(kept[1].values(), [25, 28, 27], "who have their values")
        strangers.close()
        kill_all_and_wait(stage, fresh)


@clause("MGR-16", profiles=("share",), **FASTEST_START, isolated=True)
def test_crowd_of_silent_strangers_disturbs_nobody(stage):
    """Two hundred strangers come and say nothing; a new client is served too."""
    with stage.fresh() as fresh, ExitStack() as strangers:
        share_one(fresh.owner, [61, 62])
        paths = sockets_of(fresh)
        came = [
            stranger
            for _ in range(SILENT_CONNECTIONS)
            for stranger in connect_strangers(paths, strangers, says_nothing)
        ]
        require_connection(came)
        check_clients_served(stage, fresh, "came with many")
        strangers.close()
        kill_all_and_wait(stage, fresh)


@clause("MGR-17", profiles=("share",), vary=(), isolated=True)
def test_processes_can_need_their_first_manager_at_once(stage):
    """Peer and bystander share their first tensors at the same time."""
    with stage.fresh(enter=False) as fresh:
        actors = (fresh.peer, fresh.bystander)
        for actor in actors:
            check.equal(actor.make([63]).values(), [63], "the process runs")
        check.equal(fresh.ledger.managers(), [], "there is no manager yet")
        with ThreadPoolExecutor(len(actors)) as threads:
            tensors = list(threads.map(lambda one: share_one(one, [64, 65]), actors))
        for tensor, other in zip(tensors, reversed(actors), strict=True):
            arrived = tensor.actor.send(tensor, other)
            check.equal(arrived.values(), [64, 65], "each can send to the other")
        kill_all_and_wait(stage, fresh)


@contextlib.contextmanager
def managers_stopped(fresh):
    """Stop the managers of the stage during the block."""
    managers = [manager["pid"] for manager in fresh.ledger.managers()]
    check(managers, "there is a manager")
    with process_tree.stopped(managers):
        listener().managers_signalled(signal.SIGSTOP)
        yield
    listener().managers_signalled(signal.SIGCONT)


@clause("MGR-18", profiles=("share",), **FASTEST_START, isolated=True)
def test_names_go_that_were_dropped_while_the_manager_read_nothing(stage):
    """The manager is stopped; three clients drop more names than a socket takes.

    What a client could not tell the manager then, it can when it receives or shares
    again, or the manager finds that it has ended.
    """
    with stage.fresh() as fresh:
        owner, child = fresh.owner, fresh.owner.start_peer()
        kept = share_one(owner, [67, 68])
        own = fresh.ledger.segments()
        goes_on = {
            fresh.peer: lambda: owner.send(kept, fresh.peer),
            fresh.bystander: lambda: share_one(fresh.bystander, [70, 71]),
            child: child.leave,
        }
        names = {}
        for client in goes_on:
            before = fresh.ledger.segments()
            made = client.run(make_many, MANY_NAMES, 69)
            client.run(share_each, made)
            names[client] = fresh.ledger.segments() - before
        with managers_stopped(fresh):
            wait_for_all(*(one.start(drop_others, []) for one in goes_on))
        for client, how in zip(goes_on, ("received", "shared", "ended"), strict=True):
            goes_on[client]()
            sentence = f"what a client dropped is removed when it has {how}"
            wait_until_removed(stage, fresh, names[client], sentence)
        check(own <= fresh.ledger.segments(), "and no other is")
        check.equal(kept.values(), [67, 68], "which its holder can use")


@clause("MGR-18", profiles=("share",), **FASTEST_START, isolated=True)
def test_stopped_manager_stops_nobody(stage):
    """The manager is stopped; owner and peer use, drop, share and send tensors."""
    with stage.fresh() as fresh:
        tensor, arrived = share_and_send(fresh.owner, fresh.peer)
        dropped = share_and_send(fresh.peer, fresh.owner)
        with managers_stopped(fresh):
            arrived.write(0, 66)
            check.equal(tensor.values(), [66, 28, 27], "writes are seen")
            for one in dropped:
                one.drop()
            later, _ = attempt(lambda: share_and_send(fresh.owner, fresh.peer))
            check(fresh.peer.is_alive(), "all go on")
            for one in (tensor, arrived, *(later or ())):
                one.drop()
        wait_until_removed(
            stage,
            fresh,
            fresh.ledger.segments(),
            "the names are removed in the end",
        )


def check_use_or_refusal(tensor, peer, channel):
    """Share a tensor and send it; check that each is done or refused."""
    values = tensor.values()
    _, refused = attempt(tensor.share)
    check.equal(tensor.is_shared(), refused is None, "it is shared if nothing raised")
    _, refused = attempt(lambda: tensor.actor.put(tensor, peer, channel))
    check.equal(tensor.values(), values, "it has its values")
    if refused is None:
        check_shared_memory(tensor, peer.get(tensor.actor, channel))
    tensor.write(0, 74)
    check.equal(tensor.read(0), 74, "it can be used")


@clause("MGR-19", profiles=("share", "strategies"), **FASTEST_START, isolated=True)
@pytest.mark.parametrize("interpreter", ["/nowhere/python3", "/bin/false"])
def test_manager_without_an_interpreter_is_started_later(stage, strategy, interpreter):
    """The owner shares a tensor while no Python can be started, and once more later."""
    with (
        tempfile.TemporaryDirectory() as folder,
        stage_before_manager(stage, strategy) as fresh,
    ):
        path = os.path.join(folder, "python3")
        os.symlink(interpreter, path)
        tensor = fresh.owner.make([72, 73])
        before = fresh.owner.run(set_interpreter, (path, path))
        check_use_or_refusal(tensor, fresh.peer, unthreaded_channel(stage))
        fresh.owner.run(set_interpreter, before)
        tensor.share()
        arrived = fresh.owner.send(tensor, fresh.peer)
        check_shared_memory(tensor, arrived)
        kill_all_and_wait(stage, fresh)


@clause("MGR-19", profiles=("share", "strategies"), **FASTEST_START, isolated=True)
def test_process_that_may_start_no_program_goes_on(stage, strategy):
    """A filter forbids the owner to start programs; the peer starts the manager then.

    The owner can share the same tensor now, or is refused again.
    """
    with stage_before_manager(stage, strategy) as fresh:
        owner, peer = fresh.owner, fresh.peer
        tensor = owner.make([72, 73])
        confine(owner, Need.CALL_FILTER, forbid, "execve", "EPERM")
        check_use_or_refusal(tensor, peer, unthreaded_channel(stage))
        peer.module.set_sharing_strategy(strategy)
        held = share_one(peer, [75, 76])
        check_shared_memory(held, peer.send(held, owner))
        check_use_or_refusal(tensor, peer, unthreaded_channel(stage))
        kill_all_and_wait(stage, fresh)
