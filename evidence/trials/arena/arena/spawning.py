"""Several processes that run one function."""
import os
import signal
import time
import traceback
from multiprocessing import connection


class ProcessException(Exception):
    def __init__(self, message, error_index, error_pid):
        super().__init__(message)
        self.msg, self.error_index, self.error_pid = message, error_index, error_pid


class ProcessRaisedException(ProcessException):
    pass


class ProcessExitedException(ProcessException):
    def __init__(self, message, error_index, error_pid, exit_code, signal_name=None):
        super().__init__(message, error_index, error_pid)
        self.exit_code, self.signal_name = exit_code, signal_name


def _run(fn, index, args, report):
    try:
        fn(index, *args)
    except KeyboardInterrupt:
        pass
    except Exception:
        report.send(traceback.format_exc())
        import sys

        sys.exit(1)


class ProcessContext:
    def __init__(self, processes, reports):
        self.processes, self.reports = processes, reports

    def pids(self):
        return [process.pid for process in self.processes]

    def join(self, timeout=None, grace_period=None):
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            codes = [process.exitcode for process in self.processes]
            for index, code in enumerate(codes):
                if code not in (None, 0):
                    self._fail(index)
            running = [process.sentinel for process, code in zip(self.processes, codes) if code is None]
            if not running:
                for process in self.processes:
                    process.join()  # which gives back what multiprocessing has of it
                return True
            remaining = None if until is None else until - time.monotonic()
            if remaining is not None and remaining <= 0:
                return False
            connection.wait(running, remaining)

    def _fail(self, index):
        self._end()
        process = self.processes[index]
        report = self.reports[index]
        text = None
        try:
            if report.poll():
                text = report.recv()
        except (EOFError, OSError):
            pass
        if text is not None:
            raise ProcessRaisedException(f"\n\n-- Process {index} raised:\n{text}", index, process.pid)
        code = process.exitcode
        name = None
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = f"signal {-code}"
        how = f"was ended by {name}" if name else f"exited with status {code}"
        raise ProcessExitedException(f"process {index} {how}", index, process.pid, code, name)

    def _end(self, patience=2.0):
        for process in self.processes:
            if process.is_alive():
                process.terminate()
        until = time.monotonic() + patience
        for process in self.processes:
            process.join(max(0, until - time.monotonic()))
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()


def start_processes(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn"):
    from .contexts import default_context

    ctx = default_context.get_context(start_method)
    processes, reports = [], []
    found = ProcessContext(processes, reports)
    try:
        for index in range(nprocs):
            reader, writer = ctx.Pipe(duplex=False)
            process = ctx.Process(target=_run, args=(fn, index, args, writer), daemon=daemon)
            process.start()
            writer.close()
            processes.append(process)
            reports.append(reader)
    except BaseException:
        found._end()
        raise
    if not join:
        return found
    while not found.join():
        pass
    return None


def spawn(fn, args=(), nprocs=1, join=True, daemon=False, start_method="spawn"):
    return start_processes(fn, args, nprocs, join, daemon, start_method)
