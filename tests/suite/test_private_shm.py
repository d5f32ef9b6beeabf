"""A stage has its own `/dev/shm` and another user, also without privileges.

Where the tests run as root, they do it as an ordinary user too, and as root without
CAP_SYS_ADMIN, as in a container. Where the machine refuses user namespaces, nothing
changes there.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sharedtensor_conformance.harness.kernel.private_shm import Way
from sharedtensor_conformance.report.verdicts import Need
from suites import HERE, LIMIT, environment

IS_ROOT = os.geteuid() == 0
UNKNOWN_USER = 54321  # who has no subordinate ids
IN_A_NAMESPACE = ["--without-admin"] if IS_ROOT else []
"""What makes the tests' user need a user namespace."""


def facts(*options: str, path: str = os.environ["PATH"]) -> dict[str, Any]:
    """Return what the program finds."""
    command = [sys.executable, str(HERE / "private_shm_facts.py"), *options]
    found = subprocess.check_output(
        command, env=environment() | {"PATH": path}, timeout=LIMIT
    )
    facts: dict[str, Any] = json.loads(found)
    return facts


def ordinary(user: int) -> list[str]:
    """Return the options for an ordinary user: this one, or another as root."""
    return [f"--user={user}"] if IS_ROOT else []


def user_with_ids() -> int:
    """Return a user with subordinate ids if there is one, else another."""
    possible = (
        user for user in pwd.getpwall() if IS_ROOT or user.pw_uid == os.getuid()
    )
    for user in possible:
        names = (f"{user.pw_name}:", f"{user.pw_uid}:")
        files = [Path(f"/etc/sub{kind}") for kind in ("uid", "gid")]
        if user.pw_uid and all(
            file.exists()
            and any(line.startswith(names) for line in file.read_text().splitlines())
            for file in files
        ):
            return user.pw_uid
    return UNKNOWN_USER


def permits_mounting(*options: str) -> bool:
    """Return whether a program of the system can mount, after `unshare` with options.

    Of an ordinary user where the tests run as root.
    """
    script = "mount -t tmpfs none /dev/shm"
    user = UNKNOWN_USER if IS_ROOT else None
    done = subprocess.run(
        ["unshare", *options, "sh", "-c", script], user=user, group=user, check=False
    )
    return done.returncode == 0


PERMITTED = permits_mounting("--user", "--map-root-user", "--mount")
TOOLS = all(map(shutil.which, ("newuidmap", "newgidmap")))
HAS_IDS = user_with_ids() != UNKNOWN_USER
NO_PROGRAMS = "/nonexistent"
"""A PATH without newuidmap."""


def check_mounted(found: dict[str, Any]) -> None:
    """Check that a process has its own files, and no rights that it lacked before."""
    before, after = found["before"], found["after"]
    assert found["own"]
    assert found["names"] == []
    assert found["tried"] == before, "the trial changes nothing in this process"
    assert {**after, "user": before["user"], "mnt": before["mnt"]} == before
    assert after["mnt"] != before["mnt"]
    assert after["user"] != before["user"]
    assert int(found["executed"], 16) == int(before["CapEff"], 16)


def check_unchanged(found: dict[str, Any]) -> None:
    """Check that a process is where it was, with what it had."""
    assert found["way"] == Way.NONE
    assert found["after"] == found["tried"] == found["before"]
    assert not found["own"]


def test_ordinary_user_mounts_in_a_user_namespace_with_the_own_ids():
    found = facts("mount", *ordinary(UNKNOWN_USER), path=NO_PROGRAMS)
    if not PERMITTED:
        return check_unchanged(found)
    assert found["way"] == Way.WITH_OWN_ID
    check_mounted(found)
    assert int(found["before"]["CapEff"], 16) == 0
    assert not found["has_other_user"]
    return None


def test_another_user_needs_newuidmap_and_subordinate_ids():
    found = facts("mount", *ordinary(user_with_ids()))
    if not PERMITTED:
        return check_unchanged(found)
    both = TOOLS and HAS_IDS
    assert found["way"] == (Way.WITH_SECOND_ID if both else Way.WITH_OWN_ID)
    check_mounted(found)
    assert found["has_other_user"] is both
    assert found["refused"] == ("EACCES" if both else None)
    return None


@pytest.mark.parametrize("call", ["unshare", "mount"])
def test_refusal_leaves_the_process_where_it_was(call):
    check_unchanged(facts("mount", f"--refuse={call}"))
    check_unchanged(facts("mount", *ordinary(UNKNOWN_USER), f"--refuse={call}"))


@pytest.mark.parametrize("how", ["preloaded", "clean"])
def test_processes_of_a_stage_have_only_the_rights_of_the_tests(how):
    found = facts(how, *IN_A_NAMESPACE)
    before, (supervisor, *others) = found["before"], found["processes"]
    assert found["private"] is PERMITTED
    assert found["forked"] is (how == "preloaded")
    spaces = {name: supervisor[name] for name in ("user", "mnt")}
    assert (spaces["user"] != before["user"]) is PERMITTED
    assert (spaces["mnt"] != before["mnt"]) is PERMITTED
    for process in others:
        assert process == {**before, **spaces}
    for kind in ("CapInh", "CapAmb", "CapBnd"):
        assert supervisor[kind] == before[kind], "what it starts gets nothing of it"
    assert found["values"] == [1, 2, 3]
    assert len(found["names"]) == 1
    assert (found["names"][0] not in found["outside"]) is PERMITTED
    assert found["left"] == []

    own = {name: found["own"][name] for name in ("user", "mnt")}
    assert found["own"] == {**before, **own}, "of a process, too, which has its own"
    changed = ["None" if PERMITTED else Need.PRIVATE_SHM]
    assert found["changed"] == found["confined"] == changed
    assert (own["mnt"] != spaces["mnt"]) is PERMITTED


@pytest.mark.parametrize("how", ["preloaded", "clean"])
@pytest.mark.parametrize(
    ("options", "path", "private", "mapped"),
    [
        ([], os.environ["PATH"], PERMITTED, PERMITTED and TOOLS and HAS_IDS),
        ([], NO_PROGRAMS, PERMITTED, False),
        (["--refuse=unshare"], os.environ["PATH"], False, False),
    ],
    ids=["permitted", "without newuidmap", "refused"],
)
def test_stage_says_what_another_user_needs(how, options, path, private, mapped):
    found = facts(how, *IN_A_NAMESPACE, *options, path=path)
    can = IS_ROOT or mapped  # who may set ids can map all of them
    replaced = "None" if can else Need.SECOND_USER
    assert found["refused"] == [
        "EACCES" if can else Need.SECOND_USER,
        replaced if private else Need.PRIVATE_SHM,
    ]
