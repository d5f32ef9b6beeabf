"""Contexts whose channels carry tensors."""
import multiprocessing
from multiprocessing import context, popen_fork, popen_forkserver, popen_spawn_posix, process

from . import channels, keeper, wire
from .store import state


class _Started:
    def _launch(self, process_obj):
        try:
            super()._launch(process_obj)
        finally:
            wire.started(self)


class SpawnPopen(_Started, popen_spawn_posix.Popen):
    pass


class ForkServerPopen(_Started, popen_forkserver.Popen):
    pass


class _Process(process.BaseProcess):
    """A process whose arguments are a message, and which has its parent's strategy."""

    _arena_strategy = None
    _arena_session = ""

    def start(self):
        self._arena_strategy = state.strategy
        if state.strategy == "file_system":
            self._arena_session = keeper.get_session()
        super().start()

    def _bootstrap(self, *args, **options):
        if self._arena_strategy is not None:
            state.strategy = self._arena_strategy
        keeper.session = self._arena_session or keeper.session
        return super()._bootstrap(*args, **options)

    def __reduce_ex__(self, protocol):
        context.assert_spawning(self)
        return wire.rebuild_process, (type(self), *wire.pack_state(self))


class ForkProcess(_Process):
    _start_method = "fork"

    @staticmethod
    def _Popen(process_obj):
        return popen_fork.Popen(process_obj)


class SpawnProcess(_Process):
    _start_method = "spawn"

    @staticmethod
    def _Popen(process_obj):
        return SpawnPopen(process_obj)


class ForkServerProcess(_Process):
    _start_method = "forkserver"

    @staticmethod
    def _Popen(process_obj):
        return ForkServerPopen(process_obj)


class Process(_Process):
    _start_method = None

    @staticmethod
    def _Popen(process_obj):
        return default_context.get_context().Process._Popen(process_obj)


class Channels:
    def Pipe(self, duplex=True):
        return channels.Pipe(duplex)

    def Queue(self, maxsize=0):
        return channels.Queue(maxsize, ctx=self.get_context())

    def SimpleQueue(self):
        return channels.SimpleQueue(ctx=self.get_context())

    def JoinableQueue(self, maxsize=0):
        return channels.JoinableQueue(maxsize, ctx=self.get_context())


class ForkContext(Channels, context.ForkContext):
    Process = ForkProcess


class SpawnContext(Channels, context.SpawnContext):
    Process = SpawnProcess


class ForkServerContext(Channels, context.ForkServerContext):
    Process = ForkServerProcess


_contexts = {"fork": ForkContext(), "spawn": SpawnContext(), "forkserver": ForkServerContext()}


class DefaultContext(Channels, context.DefaultContext):
    Process = Process

    def get_context(self, method=None):
        if method is None:
            if self._actual_context is None:
                self._actual_context = self._default_context
            return self._actual_context
        try:
            found = _contexts[method]
        except (KeyError, TypeError):
            raise ValueError(f"cannot find context for {method!r}") from None
        found._check_available()
        return found

    def set_start_method(self, method, force=False):
        if self._actual_context is not None and not force:
            raise RuntimeError("context has already been set")
        if method is None and force:
            self._actual_context = None
            return
        self._actual_context = self.get_context(method)

    def get_start_method(self, allow_none=False):
        if self._actual_context is None:
            if allow_none:
                return None
            self._actual_context = self._default_context
        return self._actual_context._name


default_context = DefaultContext(_contexts["fork"])


# -- executors: their queue of calls is made by a class of their own

from concurrent.futures import process as _executors  # noqa: E402

_their_queue = _executors._SafeQueue


class _CallQueue(channels.Queue):
    def __init__(self, max_size, *, ctx, **what_they_need):
        self.__dict__.update(what_they_need)
        super().__init__(max_size, ctx=ctx)

    def put(self, obj, block=True, timeout=None):
        try:
            super().put(obj, block, timeout)
        except Exception as error:
            _their_queue._on_queue_feeder_error(self, error, obj)


def _call_queue(max_size=0, *, ctx, **what_they_need):
    kind = _CallQueue if isinstance(ctx, Channels) else _their_queue
    return kind(max_size, ctx=ctx, **what_they_need)


_executors._SafeQueue = _call_queue
