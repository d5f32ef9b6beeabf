"""Mutants of the processes that are started together."""

import sys
from contextlib import suppress

from sharedtensor_conformance.mutants.registry import mutant


@mutant("every_process_is_the_first", "SPAWN-1")
def every_process_is_the_first(steps):
    """All processes get the index 0."""
    from sharedtensor.multiprocessing import spawning

    original = spawning._call
    spawning._call = lambda function, index, args, error: original(
        function, 0, args, error
    )


@mutant("workers_get_clones", "SPAWN-2")
def workers_get_clones(steps):
    """Tensors among the arguments are cloned before the processes start."""
    from sharedtensor import Tensor
    from sharedtensor.multiprocessing import spawning

    original = spawning._call

    def cloned(value):
        if isinstance(value, list):
            return [cloned(part) for part in value]
        return value.clone() if isinstance(value, Tensor) else value

    def call(function, index, args, error):
        original(function, index, tuple(map(cloned, args)), error)

    spawning._call = call


@mutant("join_waits_for_nobody", "SPAWN-3", "SPAWN-6")
def join_waits_for_nobody(steps):
    """Joining says that all have ended where none has failed yet."""
    from sharedtensor.multiprocessing.spawning import ProcessContext

    original = ProcessContext.join
    ProcessContext.join = lambda self, *limits: original(self, 0.0) or True


@mutant("join_begins_anew", "SPAWN-6")
def join_begins_anew(steps):
    """The timeout of a join begins anew whenever one of the processes ends."""
    from sharedtensor.multiprocessing.spawning import ProcessContext

    original = ProcessContext.join

    def join(self, timeout=None, grace_period=None):
        while True:
            running = len(self._running)
            all_ended = original(self, timeout, grace_period)
            if all_ended or len(self._running) == running:
                return all_ended

    ProcessContext.join = join


@mutant("tells_without_the_words", "SPAWN-4")
def tells_without_the_words(steps):
    """A process that raises is told as one that exited."""
    from sharedtensor.multiprocessing import spawning

    def call(function, index, args, error):
        with suppress(Exception):
            function(index, *args)
            return
        sys.exit(1)

    spawning._call = call


@mutant("leaves_the_others_running", "SPAWN-4", "SPAWN-7")
def leaves_the_others_running(steps):
    """The failure is told; the other processes go on."""
    from sharedtensor.multiprocessing.spawning import ProcessContext

    ProcessContext.end = lambda self, grace=0.0: self._running.clear()


@mutant("signal_is_a_status", "SPAWN-5")
def signal_is_a_status(steps):
    """A process that was killed is told with status 137, as a shell does."""
    from sharedtensor.errors import ProcessExitedException

    original = ProcessExitedException.of.__func__

    def of(cls, index, pid, exit_code):
        return original(
            cls, index, pid, exit_code if exit_code >= 0 else 128 - exit_code
        )

    ProcessExitedException.of = classmethod(of)


@mutant("asks_to_end_and_leaves", "SPAWN-7")
def asks_to_end_and_leaves(steps):
    """The others get SIGTERM; whether they end is not looked at."""
    from sharedtensor.multiprocessing.spawning import ProcessContext

    def end(self, grace=0.0):
        for index in self._running.values():
            self.processes[index].terminate()
        self._running.clear()

    ProcessContext.end = end
