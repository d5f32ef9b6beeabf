"""An actor as a test sees it: it makes tensors, sends and receives, and starts others.

The drop-in module of its process has its own class.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sharedtensor_conformance.harness.case.checks import attempt
from sharedtensor_conformance.harness.case.listening import listener
from sharedtensor_conformance.harness.case.outcomes import RemoteError
from sharedtensor_conformance.harness.remote.actor import Actor
from sharedtensor_conformance.harness.remote.calls import (
    OPERATIONS,
    ChannelProxy,
    Pending,
    Remote,
    Requester,
)
from sharedtensor_conformance.harness.remote.threads import in_a_thread, put_in_parallel

if TYPE_CHECKING:
    from sharedtensor_conformance.harness.stage.stage import Stage


class ModuleProxy:
    """The drop-in module of an actor; every function of the module is a method."""

    def __init__(self, actor: Requester) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: self._actor.run(Actor.call_module, name, *arguments)


class ActorProxy(Requester):
    """An actor. Every operation of the adapter is a method.

    `unreceived` is how many messages for it are under way, by the name of who put them:
    it has not received them.
    """

    def __init__(self, host: Stage, name: str) -> None:
        super().__init__(host, name)
        self.module = ModuleProxy(self)
        self.unreceived: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in OPERATIONS:
            raise AttributeError(f"the adapter contract has no operation {name!r}")
        return lambda *arguments: self.operate(name, *arguments)

    # Tensors and messages

    def make(
        self,
        values: list[Any],
        shape: tuple[int, ...] | None = None,
        dtype: str = "float32",
    ) -> Remote:
        """Return a new tensor; one-dimensional where no shape is given."""
        shape = (len(values),) if shape is None else shape
        made: Remote = self.operate("make", values, shape, dtype)
        return made

    def put(
        self, payload: Any, to: ActorProxy, channel: str = "", *, arrives: bool = True
    ) -> None:
        """Put `payload` on a channel to another actor; on the first one by default.

        What cannot be pickled never `arrives`, though `put` may accept it.
        """
        to.ensure_started()
        self.run(Actor.put, to.name, channel or self._first_channel, payload)
        to.unreceived[self.name] += arrives

    def put_in_parallel(self, payload: Any, *to: ActorProxy, channel: str) -> None:
        """Let as many threads put `payload`, each for one of the other actors.

        They begin at the same time. Each has a channel of its own: two threads may not
        use one end of a pipe.
        """
        for actor in to:
            actor.ensure_started()
        routes = [[actor.name, channel] for actor in to]
        self.run(put_in_parallel, routes, payload)
        for actor in to:
            actor.unreceived[self.name] += 1

    def put_in_a_thread(self, payload: Any, to: ActorProxy, channel: str) -> None:
        """Let a new thread of the process put `payload`."""
        self.put_in_parallel(payload, to, channel=channel)

    def get_in_a_thread(self, sender: ActorProxy, channel: str) -> Any:
        """Let a new thread of the process get the next payload, and return that."""
        payload = self.run(in_a_thread, Actor.get, sender.name, channel)
        self._received(sender)
        return payload

    def get(self, sender: ActorProxy, channel: str = "") -> Any:
        """Return the next payload from another actor, as it arrived here."""
        payload = self.run(Actor.get, sender.name, channel or self._first_channel)
        self._received(sender)
        return payload

    def get_or_lose(self, sender: ActorProxy, channel: str = "") -> Any:
        """Do the same; where it raises, the message counts as lost.

        Nobody waits for what is lost, though it may still come.
        """
        try:
            return self.run(Actor.get, sender.name, channel or self._first_channel)
        finally:
            self._received(sender)

    def try_get(
        self, sender: ActorProxy, channel: str = ""
    ) -> tuple[Any, RemoteError | None]:
        """Return what `get_or_lose` returned, or the implementation's exception."""
        return attempt(lambda: self.get_or_lose(sender, channel))

    def _received(self, sender: ActorProxy) -> None:
        self.unreceived -= Counter({sender.name: 1})  # it keeps no negative counts

    def send(self, payload: Any, to: ActorProxy, channel: str = "") -> Any:
        """Put `payload` and return it as it arrived."""
        self.put(payload, to, channel)
        return to.get(self, channel)

    def has_message(self, sender: ActorProxy, channel: str = "") -> bool:
        """Return whether a message from another actor can be received."""
        name = channel or self._first_channel
        return self.run(Actor.has_message, sender.name, name)

    @contextmanager
    def getting(self, sender: ActorProxy, channel: str = "") -> Iterator[Pending]:
        """Make the process wait for a message from another actor during the block.

        The block must not ask this process for anything; the message is in `payload`
        after it.
        """
        pending = self.start(Actor.get, sender.name, channel or self._first_channel)
        yield pending
        pending.answer()
        self._received(sender)

    @property
    def _first_channel(self) -> str:
        return self.host.channels[0]

    def open_channel(self, kind: str, method: str = "") -> ChannelProxy:
        """Make a channel that belongs to no pair of actors; it can be an argument."""
        method = method or self.host.configuration.start_method
        made: ChannelProxy = self.run(Actor.open_channel, kind, method)
        return made

    def drop_all(self) -> None:
        """Drop everything that the process has for the suite."""
        self.run(Actor.drop_all)

    # Processes that it starts

    def start_peer(
        self,
        arguments: Any = None,
        start_method: str | None = None,
        enter: bool = True,
        needs_device: bool = True,
    ) -> ActorProxy:
        """Start a peer of this owner for one case; `arguments` is among its own.

        Where `enter` is false the adapter's `enter_child` is not called in it, so that
        it keeps the strategy it was born with. Where `needs_device` is false the case
        is run although the peer cannot use the device of its configuration.
        """
        with self.new_peer(arguments, start_method, enter, needs_device) as peer:
            return peer

    @contextmanager
    def new_peer(
        self,
        arguments: Any = None,
        start_method: str | None = None,
        enter: bool = True,
        needs_device: bool = True,
    ) -> Iterator[ActorProxy]:
        """Make such a peer; it is started when the block is left."""
        starter = self.host.starter
        with starter.new_peer(arguments, start_method, enter, needs_device) as peer:
            yield peer

    def exit_codes(self, statuses: list[int | None]) -> list[int | None]:
        """Return exit codes of processes that it started, with what explains them."""
        return [self.host.ends.exit_code(status) for status in statuses]

    # Its own process

    def descriptors(self) -> int:
        """Return the number of open descriptors of the process."""
        return self._count("descriptors")

    def mappings(self) -> int:
        """Return the number of shared memory mappings of the process."""
        return self._count("mappings")

    def _count(self, what: str) -> int:
        self.ensure_started()
        found = int(self.host.ledger.read()["processes"][str(self.pid)][what])
        listener().read(self, what, found)
        return found

    def targets(self) -> list[str]:
        """Return the targets of the process's descriptors, for example a pipe."""
        self.ensure_started()
        return self.host.ledger.details(self.pid)["targets"]

    @property
    def arguments(self) -> Any:
        """The arguments that this process was started with, as they arrived."""
        return self.run(Actor.own_arguments)

    def leave(self) -> int | None:
        """Make the process end normally; return its exit code."""
        self.start_leaving()
        return self.wait_for_exit()

    def start_leaving(self) -> None:
        """Make the process end normally, and do not wait for its end."""
        self.ensure_started()
        self.exchange(self.deadline, "leave")

    def wait_for_exit(self) -> int | None:
        """Wait for the end of a process that is leaving; return its exit code."""
        return self.host.ends.wait_for_exit(self.process)

    def kill(self) -> None:
        """Kill the process by SIGKILL and wait until it is gone."""
        self.ensure_started()
        listener().signalled(self, signal.SIGKILL)
        os.kill(self.pid, signal.SIGKILL)
        self.host.ends.wait(self.process)

    def terminate(self) -> int | None:
        """Send SIGTERM to the process, whatever it does; return its exit code."""
        self.ensure_started()
        listener().signalled(self, signal.SIGTERM)
        os.kill(self.pid, signal.SIGTERM)
        return self.host.ends.wait(self.process)

    def reset(self) -> None:
        """Forget a process that has gone; another one can be started."""
        self.process.close()
        self.unreceived.clear()
