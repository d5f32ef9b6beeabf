"""What a process tells the shared-memory manager about the names that it uses.

**The order of calls** is that of messages in `conversation`: `register` comes before a
file is made or opened, `announce` before its handle leaves the process. For a message
that carries no descriptors a sender calls `announce_counted`, or `withdraw_counted` if
it does not leave after all, and its receiver `acknowledge_counted`, after `register`.

When one of these returns, what it says is in the manager's socket. So what any process
says because of it is sent later; it may be read earlier (see `accounting`).

**Finalizers.** `release` is called from finalizers, which the garbage collector runs in
any thread, between any two operations, perhaps while that very thread is inside this
module. Therefore it never waits for a lock: what it has to say is queued, and sent when
the lock is free (see `finalizers`). An operation that arrives in a thread that holds
the lock already takes the same queue and is sent as soon as the interrupted one is
done. Every wait on a manager is bounded.

**Fork.** A forked child must not use its parent's connection: their messages would mix,
and the death of either would go unseen. Nor may it register its inherited holds only
after the fork, since the parent may release in between (`children_come_by_themselves`
in the simulator). So the parent, before it forks, makes a socket pair and sends one end
through its own connection: the manager adds it as a client that holds what the parent
holds at that point (`children_inherit_nothing`). The child inherits the other end and
the parent closes it. If the fork fails, or the child dies at once, the end of that
connection releases everything. A signal handler can fork while a fork is prepared, and
two threads can at once, so each fork has its own of all that (see `Fork`).

**A killed manager** is noticed by the next call, which goes on with a successor (see
`conversation`). A process that makes no call looks once, when it exits, whether its
managers live.

**Connections.** There is one for each manager that this process holds names of. The one
to the process's own manager stays. Another one is closed when the last name there is
released, so that a manager does not outlive its use; it stays if this process has
counted a message there, since counted messages must not be without any client
(`leaves_with_counted_messages` in the simulator).
"""

import contextlib
import functools
import operator
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import util
from typing import Any, ParamSpec, TypeVar

from ..descriptors import OwnedDescriptor, by_reserve
from ..errors import (
    ManagerError,
    ResourceError,
    ignoring,
    pass_on,
    resource_error,
)
from ..finalizers import Busy, FinalizerLock, Job, Postponed
from . import launch, messages
from .link import Link
from .serving import complete

P = ParamSpec("P")
Result = TypeVar("Result")


class Fork:
    """What this process has prepared for one fork, and holds until that is done.

    Attributes:
        lock: the block of the client's lock, which is left with the last reference.
        connections: for the child, by the address of their manager.
    """

    __slots__ = ("connections", "lock")

    def __init__(self) -> None:
        self.lock: Iterator[bool] | None = None
        self.connections: dict[str, socket.socket | None] = {}


class _Forks(threading.local):
    """The forks that this thread is making, the innermost last; None before it begins.

    There are several where a signal handler forks while a fork is being prepared.
    """

    def __init__(self) -> None:
        self.made: list[Fork | None] = []
        self.append = self.made.append
        self.pop = self.made.pop


class Client:
    """All links of this process, and the lock that orders its messages."""

    def __init__(self) -> None:
        self.lock = FinalizerLock()
        self.links: dict[str, Link] = {}
        self.own: str | None = None

    def locked(
        self, work: Callable[P, Result], *arguments: P.args, **options: P.kwargs
    ) -> Result:
        """Return what a function returns that is called under the lock.

        Raises `ManagerError` in time if it cannot be had. Clause MGR-18.
        """
        try:
            return self.lock.run(2 * launch.TIMEOUT, work, *arguments, **options)
        except Busy:
            raise ManagerError(
                "A signal handler or a finalizer needs the shared-memory manager, "
                "which the code that it interrupts is using. Call this elsewhere."
                if self.lock.is_owned()
                else "Another thread has waited too long for the shared-memory "
                "manager. Check whether the manager is stopped."
            ) from None

    # --- messages

    def tell(
        self,
        kind: bytes,
        argument: bytes,
        address: str | None,
        descriptors: tuple[int, ...] = (),
    ) -> None:
        """Send a message about names; it is sent when this returns.

        It goes to the manager at an address, or to the process's own.
        """
        if self.lock.is_owned():
            # Its sender closes what it gave.
            own = map(OwnedDescriptor, map(os.dup, descriptors))
            self.tell_soon(kind, argument, address, tuple(own))
            return
        self.locked(self.tell_now, kind, argument, address, descriptors)

    def tell_now(
        self,
        kind: bytes,
        argument: bytes,
        address: str | None,
        descriptors: tuple[int, ...] = (),
    ) -> None:
        """Send a message; the lock is held."""
        link = self.link(address)
        if link.is_stalled:
            self.retry(link)
        self.deliver(link, kind, argument, descriptors)

    def tell_soon(
        self,
        kind: bytes,
        argument: bytes,
        address: str | None,
        descriptors: tuple[OwnedDescriptor, ...] = (),
    ) -> None:
        """Send a message now or, where that would mean to wait, soon. Clause MGR-13."""
        job = QueuedMessage(self, kind, argument, address, descriptors)
        self.run_soon(job, address)

    def run_soon(self, job: Job, address: str | None) -> None:
        """Do something soon that concerns a manager, in the order of such jobs.

        A manager that is stopped holds nothing back that another one has to hear.
        """
        self.lock.run_soon(job, address or self.own)

    def deliver(
        self, link: Link, kind: bytes, argument: bytes, descriptors: tuple[int, ...]
    ) -> None:
        """Send a message and record it."""
        is_own = link.address == self.own
        if not link.deliver_at_once(kind, argument, descriptors):
            complete(link.deliver(kind, argument, descriptors, is_own))
        if not is_own and link.may_leave():
            link.leave()
            del self.links[link.address]

    def hold(self, name: bytes, address: str | None, descriptor: object) -> None:
        """Hold a name by a descriptor, for now; see `Conversation.hold`."""
        if self.lock.is_owned():
            self.tell_soon(messages.REGISTER, name, address)
            self.run_soon(functools.partial(id, descriptor), address)  # kept until then
            return
        self.locked(self.hold_now, name, address, descriptor)

    def hold_now(self, name: bytes, address: str | None, descriptor: object) -> None:
        """Hold a name by a descriptor; the lock is held."""
        link = self.link(address)
        if link.is_stalled:
            self.retry(link)
        if not link.hold_at_once(name, descriptor):
            is_own = link.address == self.own
            complete(link.hold(name, descriptor, is_own))

    def announce(
        self,
        tell: Callable[..., None],
        kind: bytes,
        parts: Iterable[bytes],
        address: str | None,
    ) -> OwnedDescriptor:
        """Send messages with one end of a new pipe, and return the other end.

        The lock is held, which a fork waits for: a child gets no copy of either end,
        since it would keep the names in flight. Clause FS-2. Raises `ResourceError`.

        Args:
            tell: sends one message: `tell_now`, or `tell` for what interrupts that.
            kind: that of the messages.
            parts: what they say.
            address: the manager's.
        """
        here, there = pipe()
        try:
            for part in parts:
                tell(kind, part, address, (here.fd,))
        except BaseException:
            there.close()
            raise
        finally:
            here.close()
        return there

    def register_held(self, address: str | None) -> None:
        """Register what is held by a descriptor; see `Conversation.hold`."""
        link = self.known_link(address)
        if link is not None:
            complete(link.register_kept_open())

    def request(self, address: str | None, kind: bytes) -> bytes:
        """Send a request and return its answer; the lock is held."""
        link = self.link(address)
        self.retry(link)
        answer: bytes = complete(link.request(kind, link.address == self.own))
        return answer

    def retry(self, link: Link) -> None:
        """Wait once more for a manager that stalled, with what is queued for it."""
        if link.is_stalled:
            link.is_stalled = False
            self.lock.run_queued()

    # --- managers

    def link(self, address: str | None) -> Link:
        """Return the link to a manager, this process's own by default."""
        if address is None or address == self.own:
            return self.own_link()
        return self.links.get(address) or self.add_link(address)

    def add_link(self, address: str) -> Link:
        """Return a new link to a manager, with no connection yet."""
        link = self.links[address] = Link(address)
        return link

    def known_link(self, address: str | None) -> Link | None:
        """Return the link to a manager if there is one already."""
        return self.links.get(address or self.own or "")

    def own_link(self) -> Link:
        """Return the link to this process's manager, which is started if need be.

        Clauses MGR-5, MGR-14.
        """
        if self.own is not None:
            link = self.links.get(self.own) or self.add_link(self.own)
            if link.connection is not None or link.has_names():
                return link
            with ignoring(ManagerError, OSError):
                complete(link.open(may_create=True))
                return link
            link.leave()  # adopted, and ended with its directory: have another
        self.own, connected = launch.start_anywhere()
        self.links[self.own] = Link(self.own, connected)
        return self.links[self.own]

    def adopt(self, address: str) -> None:
        """Use a manager as this process's own, unless it has one; the lock is held."""
        if self.own is None:
            self.own = address

    def replace_killed_managers(self) -> None:
        """At the end of this process: put successors where managers were killed.

        Clauses MGR-14, FAULT-5.
        """
        with contextlib.suppress(Exception):
            self.locked(self.replace_killed_managers_now)

    def replace_killed_managers_now(self) -> None:
        """Do that; the lock is held."""
        for link in self.links.values():
            if link.was_killed():
                link.hang_up()
                complete(link.open(may_create=True))

    # --- fork

    def before_fork(self, forks: Sequence[Any]) -> None:
        """Prepare a connection for the child at each manager with names.

        It is the last fork that is prepared. Clauses START-3, LIFE-22, MGR-11.
        """
        if not self.lock.is_owned():
            forks[-1].lock = self.lock.hold(2 * launch.TIMEOUT)
            next(forks[-1].lock)
        for link in self.links.values():
            if link.connection is not None and link.has_names():
                forks[-1].connections[link.address] = link.prefork_connection()

    def after_fork_in_child(self, forks: Sequence[Fork | None]) -> None:
        """Take the connections of this fork, and drop what the parent has to say.

        Of the other forks, which were interrupted by this one, nothing is kept.
        """
        made = [fork for fork in forks if fork is not None]
        connections = made[-1].connections if forks[-1] is not None else {}
        for link in self.links.values():
            link.inherit(connections.get(link.address))
        self.lock.reset(keep=is_release)
        for fork in made:
            fork.connections = {}
            fork.lock = None  # the parent's lock, which nobody else uses here


class QueuedMessage:
    """A message that is sent when the lock is free; a job of `FinalizerLock`.

    Its descriptors are closed with it, and in a forked child that does without it.
    """

    __slots__ = ("address", "argument", "client", "descriptors", "kind")

    def __init__(
        self,
        client: Client,
        kind: bytes,
        argument: bytes,
        address: str | None,
        descriptors: tuple[OwnedDescriptor, ...],
    ) -> None:
        self.client = client
        self.kind = kind
        self.argument = argument
        self.address = address
        self.descriptors = descriptors

    def __call__(self) -> None:
        """Send it, unless its manager or the system does not take it now.

        Whoever queued it has gone on: there is nobody to tell of an error.
        """
        try:
            link = self.find_link()
            if link is not None:
                descriptors = tuple(owned.fd for owned in self.descriptors)
                self.client.deliver(link, self.kind, self.argument, descriptors)
        except ResourceError:  # by the system, for now
            raise Postponed from None
        except Exception as error:
            pass_on(error)
            link = self.client.known_link(self.address)
            if link is not None and link.is_stalled:
                raise Postponed from None

    def find_link(self) -> Link | None:
        """Return the link to its manager; for a release none is made."""
        if self.kind == messages.RELEASE:
            return self.client.known_link(self.address)
        return self.client.link(self.address)


def is_release(job: Job) -> bool:
    """Return whether a forked child has to do this job of its parent as well."""
    return isinstance(job, QueuedMessage) and job.kind == messages.RELEASE


def checked(name: str) -> bytes:
    """Return a name as it travels; raise `ValueError` if it is none of ours."""
    encoded = name.encode()
    if not messages.is_name(encoded):
        raise ValueError(
            f"{name!r} cannot be the name of a shared storage. Use 'sharedtensor-' and "
            "letters, digits or hyphens, 255 bytes at most."
        )
    return encoded


def register_exit(client: Client) -> None:
    """Let a client look after its managers when this process exits."""
    util.Finalize(None, client.replace_killed_managers, exitpriority=0)


_client = Client()
register_exit(_client)
util.register_after_fork(_client, register_exit)
before_fork = _client.before_fork
after_fork_in_child = _client.after_fork_in_child

_forks = _Forks()


def _prepare_fork() -> None:
    _forks.made[-1] = Fork()
    before_fork(_forks.made)


def _begin_forked_child() -> None:
    after_fork_in_child(_forks.made)


# Sharing takes the lock of `state` first and the client's second, and so has a fork to:
# the hooks before it run in the reverse order of their registration, and `state`, which
# is imported later, registers its own later.
os.register_at_fork(before=_prepare_fork, after_in_child=_begin_forked_child)

# Python ignores what a signal handler raises in a hook, wherever that is then, and a
# signal that comes during the fork is handled where the next function of Python begins.
# So what begins a fork and what ends it are functions of C (FAULT-2). No function has a
# `Fork` in a variable, where the traceback of an exception would keep it.
_end = functools.partial(operator.methodcaller("pop"), _forks)
os.register_at_fork(
    before=functools.partial(operator.methodcaller("append", None), _forks),
    after_in_parent=_end,
    after_in_child=_end,
)


def register(name: str, address: str | None = None) -> None:
    """Say that this process uses a name once more. Clauses FS-2, FS-8, MGR-11.

    `address` is the manager that knows the name, this process's own by default.

    Raises `ManagerError` if that manager has ended or cannot be reached, and
    `ValueError` for what is no name of a shared storage.
    """
    _client.tell(messages.REGISTER, checked(name), address)


def register_announced(name: str, address: str | None = None) -> OwnedDescriptor:
    """Do `register` and `announce` of one name by one message. Clauses FS-2, LIFE-2.

    Return the descriptor that `announce` returns, and raise what it raises.
    """
    return announced(messages.REGISTER_ANNOUNCED, [checked(name)], address)


def hold(name: str, address: str | None, descriptor: object) -> None:
    """Hold a name that was received, for now by the descriptor that stands for it.

    It is registered, and then the descriptor closed, when the next one is held so,
    or before a fork; `release` gives either up. `descriptor` owns the copy that came
    with the message, which is closed with the last reference to that. Clauses FS-3,
    FS-8, LIFE-2. Raises as `register` does.
    """
    _client.hold(checked(name), address, descriptor)


def register_held(address: str | None = None) -> None:
    """Register what `hold` holds by a descriptor, which stands for others too.

    Where the lock is held this is done soon: a name goes later at worst. Clause FS-2.
    """
    _client.run_soon(functools.partial(_client.register_held, address), address)


def release(name: str, address: str | None = None) -> None:
    """Take back one `register`; more of them than that have no effect. Clause FS-2.

    Never raises and never waits for another thread: see the module on finalizers.
    Clauses MGR-13, MGR-18.
    """
    try:
        _client.tell_soon(messages.RELEASE, checked(name), address)
    except Exception as error:
        pass_on(error)


def announce(names: Sequence[str], address: str | None = None) -> OwnedDescriptor:
    """Say that a message with these names is about to leave. Clauses LIFE-2, FS-10.

    Return a descriptor that has to go with the message: the names are held until all
    its copies are closed. Raises as `register` does, and
    `ResourceError`.
    """
    return announced(messages.ANNOUNCE, packets(names), address)


def announced(
    kind: bytes, parts: Iterable[bytes], address: str | None
) -> OwnedDescriptor:
    """Announce names, under the lock unless this thread has it already."""
    if _client.lock.is_owned():
        return _client.announce(_client.tell, kind, parts, address)
    return _client.locked(_client.announce, _client.tell_now, kind, parts, address)


def pipe() -> tuple[OwnedDescriptor, OwnedDescriptor]:
    """Return the ends of a new pipe, which no forked child keeps."""
    try:
        return by_reserve(OwnedDescriptor.pair_opened_by, os.pipe)
    except OSError as error:
        pass_on(error)
        doing = "Sending the names of shared storages"
        raise resource_error(error.errno, doing) from error


def packets(names: Sequence[str]) -> Iterator[bytes]:
    """Return names as they travel, as many together as a message may have."""
    encoded = [checked(name) for name in names]
    at_once = (messages.LONGEST_MESSAGE - 1) // (1 + max(map(len, encoded), default=0))
    for begin in range(0, len(encoded), at_once):
        yield messages.SEPARATOR.join(encoded[begin : begin + at_once])


def announce_counted(name: str, address: str | None = None) -> None:
    """Say that a message with the name is about to leave that carries no descriptors.

    Clause LIFE-2. Raises as `register` does.
    """
    _client.tell(messages.ANNOUNCE_COUNTED, checked(name), address)


def acknowledge_counted(name: str, address: str | None = None) -> None:
    """Say that a counted message has arrived, after `register`. Clause LIFE-2.

    Raises as `register` does.
    """
    _client.tell(messages.ACKNOWLEDGE_COUNTED, checked(name), address)


def withdraw_counted(name: str, address: str | None = None) -> None:
    """Say that a counted message will never arrive. Raises as `register` does."""
    _client.tell(messages.WITHDRAW_COUNTED, checked(name), address)


def address() -> str:
    """Return the address of this process's manager, which is started if need be.

    Raises `ManagerError` if it cannot be started.
    """
    if _client.own is not None and _client.lock.is_owned():
        return _client.own  # for a signal handler or a finalizer
    return _client.locked(_client.own_link).address


def adopt(address: str) -> None:
    """Use the manager at an address as this process's own, unless it has one."""
    _client.locked(_client.adopt, address)


def sync(address: str | None = None) -> None:
    """Wait until the manager has done all that this process told it before.

    Names that became unreachable by it have then been removed. Without `address`, and
    if this process has no manager yet, there is nothing to wait for.

    Raises as `register` does.
    """
    if address is not None or _client.own is not None:
        _client.locked(_client.request, address, messages.SYNC)


def status(address: str | None = None) -> dict[str, int]:
    """Return the manager's counts: pid, clients, names, holds, in_flight.

    Raises as `register` does.
    """
    reply = _client.locked(_client.request, address, messages.STATUS)
    keys = ("pid", "clients", "names", "holds", "in_flight")
    return dict(zip(keys, messages.COUNTS.unpack(reply), strict=True))
