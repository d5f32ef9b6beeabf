"""Mutants of groups of processes that run one function."""

import os
import sys
import time
from contextlib import contextmanager, nullcontext, suppress

from sharedtensor_conformance.mutants.registry import mutant


@mutant(
    "every_process_is_the_first", "SPAWN-1", replaces="multiprocessing.spawning._call"
)
def every_process_is_the_first(call):
    """All processes get the index 0."""
    return lambda function, index, args, error: call(function, 0, args, error)


@mutant(
    "groups_are_always_forked", "SPAWN-1", replaces="multiprocessing.start_processes"
)
def groups_are_always_forked(start_processes):
    """Whatever start method is asked for, the processes are forked."""

    def fork(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn"):
        return start_processes(fn, args, nprocs, join, daemon, "fork")

    return fork


@mutant("list_is_one_argument", "SPAWN-1", replaces="multiprocessing.spawning._call")
def list_is_one_argument(call):
    """Where the arguments are a list and no tuple, the function gets that list."""

    def call_with_tuples(function, index, args, pipe):
        call(function, index, args if isinstance(args, tuple) else (args,), pipe)

    return call_with_tuples


@mutant("daemons_are_none", "SPAWN-1", replaces="multiprocessing.start_processes")
def daemons_are_none(start_processes):
    """The processes are no daemons, whatever the caller asks for."""

    def start(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn"):
        return start_processes(fn, args, nprocs, join, False, start_method)

    return start


@mutant(
    "start_method_counts_by_name_alone",
    "SPAWN-1",
    replaces="multiprocessing.start_processes",
)
def start_method_counts_by_name_alone(start_processes):
    """A start method that is given by position is ignored."""

    def start(fn, args=(), nprocs=1, join=True, daemon=False, *given, **named):
        return start_processes(fn, args, nprocs, join, daemon, **named)

    return start


@mutant("arguments_have_other_names", "SPAWN-1", replaces="multiprocessing.spawn")
def arguments_have_other_names(spawn):
    """The function to call cannot be given by its name."""

    def start(function, args=(), *given, **named):
        return spawn(function, args, *given, **named)

    return start


@mutant("two_processes_by_default", "SPAWN-1", replaces="multiprocessing.spawn")
def two_processes_by_default(spawn):
    """Where no number is given, two processes are started."""

    def start(fn, args=(), nprocs=2, **named):
        return spawn(fn, args, nprocs, **named)

    return start


@mutant("workers_get_clones", "SPAWN-2", replaces="multiprocessing.spawning._call")
def workers_get_clones(call):
    """Tensors among the arguments are cloned before the processes start."""
    from sharedtensor import Tensor

    def cloned(value):
        if isinstance(value, list):
            return [cloned(part) for part in value]
        return value.clone() if isinstance(value, Tensor) else value

    def call_with_clones(function, index, args, error):
        call(function, index, tuple(map(cloned, args)), error)

    return call_with_clones


@mutant(
    "join_waits_for_nobody",
    "SPAWN-3",
    "SPAWN-6",
    replaces="multiprocessing.spawning.ProcessContext.join",
)
def join_waits_for_nobody(join):
    """Joining says that all have ended where none has failed yet."""
    return lambda self, *limits: join(self, 0.0) or True


@mutant(
    "failure_is_told_once",
    "SPAWN-3",
    replaces="multiprocessing.spawning.ProcessContext.join",
)
def failure_is_told_once(join):
    """A join after one that has raised says that all have ended well."""

    def join_again(self, *limits):
        return self._failed is not None or join(self, *limits)

    return join_again


@mutant(
    "join_begins_anew",
    "SPAWN-6",
    replaces="multiprocessing.spawning.ProcessContext.join",
)
def join_begins_anew(join):
    """The timeout of a join begins anew whenever one of the processes ends."""

    def join_again(self, timeout=None, grace_period=None):
        while True:
            running = len(self._running)
            all_ended = join(self, timeout, grace_period)
            if all_ended or len(self._running) == running:
                return all_ended

    return join_again


@mutant("tells_without_the_words", "SPAWN-4", replaces="multiprocessing.spawning._call")
def tells_without_the_words(call):
    """A process that raises is told as one that exited."""

    def call_silently(function, index, args, error):
        with suppress(Exception):
            function(index, *args)
            return
        sys.exit(1)

    return call_silently


@mutant("tells_the_end_of_it", "SPAWN-4", replaces="multiprocessing.spawning._call")
def tells_the_end_of_it(call):
    """Of a long report of an exception only the last thousand characters are told."""

    class Short:
        def __init__(self, error):
            self.error = error

        def send(self, told):
            self.error.send(told[-1000:] if isinstance(told, str) else told)

        def close(self):
            self.error.close()

    def call_and_tell(function, index, args, error):
        call(function, index, args, Short(error))

    return call_and_tell


@mutant(
    "counts_only_those_that_run",
    *("SPAWN-4", "SPAWN-5"),
    replaces="multiprocessing.spawning.ProcessContext._failure",
)
def counts_only_those_that_run(failure):
    """The index of a failure is counted without the processes that have ended well."""

    def name_the_place(self, index):
        return failure(self, list(self._running.values()).index(index))

    return name_the_place


@mutant(
    "joined_once_is_joined_well",
    "SPAWN-5",
    replaces="multiprocessing.spawning.ProcessContext.join",
)
def joined_once_is_joined_well(join):
    """A failure after a join that has returned false counts as a good end."""

    def join_again(self, *limits):
        try:
            ended = join(self, *limits)
        except Exception:
            if hasattr(self, "was_joined"):
                return True
            raise
        self.was_joined = True
        return ended

    return join_again


@mutant(
    "leaves_the_others_running",
    "SPAWN-4",
    "SPAWN-7",
    replaces="multiprocessing.spawning.ProcessContext.end",
)
def leaves_the_others_running(end):
    """The failure is told; the other processes go on."""
    return lambda self, grace=0.0: self._running.clear()


@mutant("interrupt_is_a_good_end", "SPAWN-5", replaces="multiprocessing.spawning._call")
def interrupt_is_a_good_end(call):
    """A process that SIGINT has ended is taken for one that has done its work."""

    def call_until_interrupted(function, *arguments):
        def interruptible(*given):
            with suppress(KeyboardInterrupt):
                function(*given)

        call(interruptible, *arguments)

    return call_until_interrupted


@mutant(
    "interrupt_is_a_status",
    "SPAWN-5",
    replaces="multiprocessing.spawning._end_by_interrupt",
)
def interrupt_is_a_status(end_by_interrupt):
    """A process that SIGINT has ended is told with status 130, as a shell does."""
    return lambda: sys.exit(130)


@mutant("signal_is_a_status", "SPAWN-5", replaces="errors.ProcessExitedException.of")
def signal_is_a_status(of):
    """A process that was killed is told with status 137, as a shell does."""

    def told_as_a_shell_does(index, pid, exit_code):
        return of(index, pid, exit_code if exit_code >= 0 else 128 - exit_code)

    return told_as_a_shell_does


@mutant(
    "asks_to_end_and_leaves",
    "SPAWN-7",
    replaces="multiprocessing.spawning.ProcessContext.end",
)
def asks_to_end_and_leaves(end):
    """The others get SIGTERM; whether they end is not looked at."""

    def terminate(self, grace=0.0):
        for index in self._running.values():
            self.processes[index].terminate()
        self._running.clear()

    return terminate


@mutant(
    "ends_the_first_that_refuses",
    "SPAWN-7",
    replaces="multiprocessing.spawning.ProcessContext.end",
)
def ends_the_first_that_refuses(end):
    """Of those that ignore SIGTERM only the first is killed."""

    def end_one(self, grace=0.0):
        running = [self.processes[index] for index in self._running.values()]
        for process in running:
            process.terminate()
        until = time.monotonic() + grace
        for process in running:
            process.join(max(until - time.monotonic(), 0.0))
            if process.is_alive():
                process.kill()
                process.join()
                break
        self._running.clear()

    return end_one


def _is_of_fork_server(process):
    return process._start_method == "forkserver"


@mutant(
    "fork_server_ends_none_that_refuses",
    "SPAWN-7",
    replaces="multiprocessing.spawning.ProcessContext.end",
)
def fork_server_ends_none_that_refuses(end):
    """Under a fork server the others get SIGTERM, and no SIGKILL if they ignore it."""

    def end_kindly(self, grace=0.0):
        processes = [self.processes[index] for index in self._running.values()]
        if not any(map(_is_of_fork_server, processes)):
            return end(self, grace)
        for process in processes:
            process.terminate()
            process.join(grace)
        self._running.clear()

    return end_kindly


@mutant(
    "fork_server_tells_no_signal",
    "SPAWN-5",
    replaces="multiprocessing.spawning.ProcessContext._failure",
)
def fork_server_tells_no_signal(failure):
    """Under a fork server a signal is told as the status 255."""
    from sharedtensor.errors import ProcessExitedException

    def failure_of(self, index):
        process = self.processes[index]
        if _is_of_fork_server(process) and (process.exitcode or 0) < 0:
            return ProcessExitedException.of(index, process.pid, 255)
        return failure(self, index)

    return failure_of


@mutant(
    "spawn_tells_no_failure", "SPAWN-4", "SPAWN-5", replaces="multiprocessing.spawn"
)
def spawn_tells_no_failure(spawn):
    """`spawn()`, and it alone, returns None where a process has failed."""
    from sharedtensor.errors import ProcessException

    def spawn_silently(*arguments, **options):
        with suppress(ProcessException):
            return spawn(*arguments, **options)

    return spawn_silently


@mutant(
    "killed_parent_leaves_orphans",
    "SPAWN-8",
    replaces="multiprocessing.spawning._end_with",
)
def killed_parent_leaves_orphans(end_with):
    """Processes whose parent is killed run on."""
    return lambda parent: None


@mutant(
    "end_of_a_thread_ends_its_processes",
    "SPAWN-9",
    replaces="multiprocessing.spawning._parent_to_end_with",
)
def end_of_a_thread_ends_its_processes(parent_to_end_with):
    """Processes are ended when the thread ends that has started them."""
    return lambda context: os.getpid()


@mutant("spawn_always_joins", "SPAWN-3", replaces="multiprocessing.spawn")
def spawn_always_joins(spawn):
    """`spawn()` joins, though it was told not to."""
    return lambda *arguments, join, **options: spawn(*arguments, **options)


@mutant(
    "no_time_is_no_bound",
    "SPAWN-6",
    replaces="multiprocessing.spawning.ProcessContext.join",
)
def no_time_is_no_bound(join):
    """A join with the timeout 0 waits as one without a timeout does."""
    return lambda self, timeout=None, grace=None: join(self, timeout or None, grace)


@mutant(
    "earlier_report_is_told",
    "SPAWN-5",
    replaces="multiprocessing.spawning.ProcessContext._failure",
)
def earlier_report_is_told(failure):
    """Of a process that left no report, that of an earlier one is told."""
    from sharedtensor.errors import ProcessRaisedException

    reports = {}

    def failure_or_report(self, index):
        error = failure(self, index)
        if isinstance(error, ProcessRaisedException):
            reports[index] = error
        return reports.get(index, error)

    return failure_or_report


@mutant(
    "index_of_the_last_is_cut",
    "SPAWN-4",
    replaces="multiprocessing.spawning.ProcessContext._failure",
)
def index_of_the_last_is_cut(failure):
    """Where more than four processes run, the fifth is told as the fourth."""
    return lambda self, index: failure(self, min(index, 3))


@mutant(
    "large_statuses_are_signals", "SPAWN-5", replaces="errors.ProcessExitedException.of"
)
def large_statuses_are_signals(of):
    """A status above 127 is told as that of a shell: the number of a signal."""

    def exited(index, pid, code):
        return of(index, pid, 128 - code if code > 128 else code)

    return exited


# Those of `spawn()` alone, and of calls that join


@contextmanager
def _ending_with(parent):
    """Let processes that start during the block end with this parent; None for none."""
    from sharedtensor.multiprocessing import spawning

    before = spawning._parent_to_end_with
    spawning._parent_to_end_with = lambda context: parent
    try:
        yield
    finally:
        spawning._parent_to_end_with = before


@mutant("spawn_leaves_orphans", "SPAWN-8", replaces="multiprocessing.spawn")
def spawn_leaves_orphans(spawn):
    """Processes of `spawn()`, and they alone, run on when their parent is killed."""

    def spawn_orphans(*arguments, **options):
        with _ending_with(None):
            return spawn(*arguments, **options)

    return spawn_orphans


@mutant(
    "joining_call_leaves_orphans",
    "SPAWN-8",
    replaces=("multiprocessing.start_processes", "multiprocessing.spawn"),
)
def joining_call_leaves_orphans(start_processes, spawn):
    """Processes run on when their parent is killed in the call that joins them."""

    def without(call):
        def call_and_leave(fn, args=(), nprocs=1, join=True, **options):
            with _ending_with(None) if join else nullcontext():
                return call(fn, args, nprocs, join, **options)

        return call_and_leave

    return without(start_processes), without(spawn)


@mutant("spawn_ends_with_its_thread", "SPAWN-9", replaces="multiprocessing.spawn")
def spawn_ends_with_its_thread(spawn):
    """Processes of `spawn()`, and they alone, end with the thread that called it."""

    def spawn_and_end(*arguments, **options):
        with _ending_with(os.getpid()):
            return spawn(*arguments, **options)

    return spawn_and_end


@mutant("spawn_tells_a_failure_once", "SPAWN-3", replaces="multiprocessing.spawn")
def spawn_tells_a_failure_once(spawn):
    """What `spawn()` returns, and it alone, tells a failure by the first join only."""

    def spawn_once(*arguments, **options):
        started = spawn(*arguments, **options)
        if started is not None:
            join = started.join
            started.join = lambda *limits: started._failed is not None or join(*limits)
        return started

    return spawn_once


class _Interruptible:
    """A function that returns normally when it is interrupted."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *given):
        with suppress(KeyboardInterrupt):
            self.function(*given)


@mutant("spawn_forgives_an_interrupt", "SPAWN-5", replaces="multiprocessing.spawn")
def spawn_forgives_an_interrupt(spawn):
    """A process of `spawn()`, and it alone, exits with 0 when SIGINT has ended it."""
    return lambda fn, *arguments, **options: spawn(
        _Interruptible(fn), *arguments, **options
    )


@mutant(
    "interrupted_call_leaves_its_processes",
    "SPAWN-7",
    replaces="multiprocessing.spawning.ProcessContext.end",
)
def interrupted_call_leaves_its_processes(end):
    """A call that has started processes and is interrupted lets them run on."""

    def end_unless_interrupted(self, *grace):
        if not isinstance(sys.exc_info()[1], KeyboardInterrupt):
            end(self, *grace)

    return end_unless_interrupted


@mutant(
    "unknown_statuses_are_failures",
    "SPAWN-10",
    replaces="multiprocessing.spawning.ProcessContext._told",
)
def unknown_statuses_are_failures(told):
    """A process that has said that it has done its work is not believed."""

    def tell(group, index):
        said = told(group, index)
        return None if said == 0 else said

    return tell
