"""Mutants of the manager, by way of how it is started."""

import os
import subprocess
from types import SimpleNamespace

from sharedtensor_conformance.mutants import mutant


def _start_with(change):
    """Start managers with keyword arguments that `change` has changed."""
    from sharedtensor.manager import launch

    def start(command, **options):
        return subprocess.Popen(*change(command, options), **options)

    launch.subprocess = SimpleNamespace(**vars(subprocess) | {"Popen": start})


@mutant("manager_stays_in_the_session", "MGR-1")
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
