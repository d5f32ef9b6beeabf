"""A program that makes a private `/dev/shm` with reduced rights, and prints facts.

It imports everything before it gives rights up, since another user may not be able to
read Python's files. What it prints is JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from sharedtensor_conformance.adapters import reference
from sharedtensor_conformance.chapters import (
    confinement,
    system_actions,
    system_changes,
)
from sharedtensor_conformance.chapters.env_actions import mount_own_shm
from sharedtensor_conformance.chapters.shared_steps import confine
from sharedtensor_conformance.harness.case.axes import Configuration
from sharedtensor_conformance.harness.case.outcomes import NotRun
from sharedtensor_conformance.harness.kernel import (
    capabilities,
    private_shm,
    process_tree,
)
from sharedtensor_conformance.harness.stage.stage import Stage
from sharedtensor_conformance.harness.supervisor.template import Template
from sharedtensor_conformance.report.verdicts import Need

SET_DUMPABLE, DROP_BOUNDING = 4, 24  # prctl(2)
CAP_SYS_ADMIN = 21  # capabilities(7)
NUMBERS = {  # of system calls
    "x86_64": {"unshare": 272, "mount": 165},
    "aarch64": {"unshare": 97, "mount": 40},
}
TIMEOUT = 20.0
CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
NAMESPACES = ("user", "mnt")

_libc = ctypes.CDLL(None, use_errno=True)


def become(user: int) -> None:
    """Become an ordinary user, as one that has logged in."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    _libc.prctl(SET_DUMPABLE, 1, 0, 0, 0)
    os.environ["TMPDIR"] = "/tmp"


def drop_admin() -> None:
    """Give CAP_SYS_ADMIN up, like root in a container."""
    before = capabilities.current()
    admin = 1 << CAP_SYS_ADMIN
    kept = capabilities.Before(before.permitted & ~admin, before.bounding & ~admin)
    capabilities.restrict_to(kept)


def refuse(call: str) -> None:
    """Have the kernel refuse a system call, as the filters of containers do."""
    number = NUMBERS[platform.machine()][call]
    assert not confinement.refuse_call(number, "EPERM")


def of_process(pid: int) -> dict[str, Any]:
    """Return what the kernel says of the rights and namespaces of a process."""
    status = process_tree.status(pid)
    kept = {name: status[name] for name in (*CAPABILITIES, "Uid", "Gid")}
    spaces = {name: os.readlink(f"/proc/{pid}/ns/{name}") for name in NAMESPACES}
    return kept | spaces


def mounted() -> dict[str, Any]:
    """Mount in this process; return what it finds then."""
    before, device = of_process(os.getpid()), os.stat(private_shm.SHM).st_dev
    had = capabilities.current()
    way = private_shm.best_way()
    tried = of_process(os.getpid())
    private_shm.mount(way)
    supervisor = SimpleNamespace(temporary="/")
    has_other_user = system_actions.has_other_user(supervisor)
    refused = None
    if has_other_user:
        path = f"{private_shm.SHM}/secret"
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        refused = system_actions.as_nobody(supervisor, "read", path)
        os.unlink(path)
    capabilities.restrict_to(had)
    grep = str(shutil.which("grep", path=os.defpath))
    executed = subprocess.check_output([grep, "CapEff", "/proc/self/status"])
    return {
        "way": way,
        "before": before,
        "tried": tried,
        "after": of_process(os.getpid()),
        "own": os.stat(private_shm.SHM).st_dev != device,
        "names": os.listdir(private_shm.SHM),
        "executed": executed.decode().split()[1],
        "has_other_user": has_other_user,
        "refused": refused,
    }


def of_stage(preload: bool) -> dict[str, Any]:
    """Start a stage, of which an owner shares a tensor; return what is to be seen."""
    implementation = replace(reference.conformance_adapter, preload=preload)
    template = Template("reference", implementation)
    configuration = Configuration("file_system", "spawn")
    stage = Stage("reference", implementation, configuration, template)
    try:
        stage.peer.ensure_started()
        tensor = stage.owner.make([1, 2, 3])
        arrived = stage.owner.send(tensor, stage.peer)
        # What the peer was warmed up with goes a moment later.
        process_tree.wait_until(lambda: len(stage.ledger.segments()) == 1, TIMEOUT)
        names = list(stage.ledger.segments())
        supervisor = int(process_tree.stat(stage.owner.pid)[1])
        pids = [supervisor, stage.owner.pid, stage.peer.pid]
        found = {
            "private": stage.supervision.private,
            "forked": not template.why_not,
            "processes": [of_process(pid) for pid in pids],
            "names": names,
            "outside": os.listdir(private_shm.SHM),
            "values": arrived.values(),
            "changed": outcomes(lambda: limit_shm(stage)),
            "refused": outcomes(
                lambda: system_changes.as_nobody(stage, "read", f"/dev/shm/{names[0]}"),
                lambda: system_changes.replace_segment(stage, names[0], "nobody"),
            ),
            "confined": outcomes(
                lambda: confine(stage.peer, Need.PRIVATE_SHM, mount_own_shm)
            ),
            "own": of_process(stage.peer.pid),
        }
        root = stage.supervision.folder
    finally:
        stage.close()
        template.close()
    left = [pid for pid in pids if not process_tree.has_ended(pid)]
    found["left"] = [*left, *([str(root)] if root and root.exists() else [])]
    return found | {"before": of_process(os.getpid())}


def limit_shm(stage: Stage) -> None:
    """Have the supervisor mount, which it can only with its capabilities."""
    with system_changes.limited_shm(stage, 0):
        pass


def outcomes(*attempts: Callable[[], Any]) -> list[str]:
    """Return what comes of attempts, or what the machine lacks for them."""
    found = []
    for attempt in attempts:
        try:
            found.append(str(attempt()))
        except NotRun as error:
            found.append(str(error.need))
    return found


def main() -> None:
    """Give up what the options say; print the facts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["mount", "preloaded", "clean"])
    parser.add_argument("--user", type=int)
    parser.add_argument("--without-admin", action="store_true")
    parser.add_argument("--refuse", choices=["unshare", "mount"])
    options = parser.parse_args()
    if options.user is not None:
        become(options.user)
    if options.without_admin:
        drop_admin()
    if options.refuse:
        refuse(options.refuse)
    preload = options.what == "preloaded"
    found = mounted() if options.what == "mount" else of_stage(preload)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
