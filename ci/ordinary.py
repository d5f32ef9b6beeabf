"""Runs the README's commands on the machines that people have, one after the other.

    python ci/ordinary.py [ENVIRONMENT ...] [--test | --both] [-- OPTION ...]

An environment says who runs a command, with which limits, and what the system permits.
Each is made by the tools of util-linux: unshare, mount, setpriv and prlimit. Most need
root, since an ordinary user cannot become another one. Without root those that need it
are listed as not run, and the others are run as the user who asks.

Two environments are Debian's unstable distribution, for Pythons that are newer than the
one here. debootstrap installs it, in minutes, in a folder that becomes the root of the
environment. They are run only if they are named.

A command has to exit with status 0, and to leave no process, segment or folder. What
the suite did not judge is shown with what it would need.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from readme_command import command

sys.path.append(str(Path(__file__).resolve().parents[1] / "conformance"))

from sharedtensor_conformance.harness.kernel.process_tree import wait_until

CHECKOUT = Path(__file__).parent.parent
USER = 60123
"""The id of an ordinary user: no account has to have it, as in many containers."""

IN_A_CONTAINER = (
    "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,"
    "+net_bind_service,+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap"
)
"""The capabilities of root in a container, as Docker and Podman leave them."""

WITHOUT_NAMESPACES = """
import os, platform, sys
from sharedtensor_conformance.chapters.confinement import refuse_call
refused = refuse_call({"x86_64": 272, "aarch64": 97}[platform.machine()], "EPERM")
if refused:
    sys.exit(refused)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""A program that becomes another one, which may not call unshare(2)."""

LEFTOVERS = ("sharedtensor-*", "sts-*", "torch_*", "sem.mp-*", "pymp-*")


@dataclass(frozen=True)
class Environment:
    """An environment for a command.

    Args:
        what: a description of it.
        as_root: whether root runs the command.
        open_files: the soft and the hard limit of open files; None keeps them.
        container: whether root has the capabilities that it has in a container, a
            namespace of process ids, and a ``/dev/shm`` of 64 MiB.
        namespaces: whether user namespaces may be made.
        variables: environment variables; ``{folder}`` is a folder of the command's.
        workers: the option ``-n``.
        debian: the Python of Debian's unstable distribution; empty for the one here.
    """

    what: str
    as_root: bool = False
    open_files: int | None = 1024
    container: bool = False
    namespaces: bool = True
    variables: dict[str, str] = field(default_factory=dict)
    workers: str = "auto"
    debian: str = ""

    @property
    def needs_root(self) -> bool:
        """Whether an ordinary user cannot make it."""
        return self.as_root or bool(self.debian)


ENVIRONMENTS = {
    "root": Environment("root", as_root=True, open_files=None),
    "user": Environment("ordinary user, 1024 open files"),
    "user-4096": Environment("ordinary user, 4096 open files", open_files=4096),
    "user-20000": Environment("ordinary user, 20000 open files", open_files=20000),
    "no-namespaces": Environment(
        "ordinary user, user namespaces forbidden", namespaces=False
    ),
    "container": Environment(
        "root as in a container, 64 MiB of /dev/shm, 1024 open files",
        as_root=True,
        container=True,
        namespaces=False,
    ),
    "long-tmpdir": Environment(
        "ordinary user, a TMPDIR of 150 letters",
        variables={"TMPDIR": "{folder}/" + "t" * 150},
    ),
    "read-only-home": Environment(
        "ordinary user, a home that cannot be written",
        variables={"HOME": "{folder}/home"},
    ),
    "plain-locale": Environment(
        "ordinary user, LANG=C", variables={"LANG": "C", "LC_ALL": "C"}
    ),
    "one-worker": Environment("ordinary user, one worker", workers="1"),
    "two-workers": Environment("ordinary user, two workers", workers="2"),
    "sixteen-workers": Environment("ordinary user, 16 workers", workers="16"),
    "python3.14": Environment("ordinary user, Python 3.14", debian="3.14"),
    "python3.15": Environment("ordinary user, Python 3.15", debian="3.15"),
}

SHARED_WITH_DEBIAN = ("/dev", "/tmp", "/etc/resolv.conf", "/etc/pip.conf", "/etc/ssl")
"""What an environment in Debian has in common with this system."""


class Clone:
    """A copy of this checkout that belongs to one user, with an environment for it.

    Args:
        folder: where to make it.
        user: whose it is.
        debian: the Python of Debian's unstable distribution that runs the commands.
    """

    def __init__(self, folder: Path, user: int, debian: str = "") -> None:
        self.folder = folder
        self.user = user
        self.debian = _debian(folder.parent, debian) if debian else None
        self.checkout = folder / "checkout"
        self.python = folder / "python"
        folder.mkdir()
        self.python.mkdir()
        (folder / "home").mkdir(mode=0o555)
        (folder / ("t" * 150)).mkdir()
        (folder / "tmp").mkdir()
        self._copy()
        if user != os.geteuid():
            for path in [folder, *folder.rglob("*")]:
                os.chown(path, user, user, follow_symlinks=False)

    def _copy(self) -> None:
        """Clone the checkout, and copy what is not committed yet."""
        source = f"file://{CHECKOUT}"  # a path has its history copied, too
        clone = ("git", "clone", "-q", "--depth=1", source, self.checkout)
        subprocess.run(clone, check=True)
        listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        names = subprocess.check_output(listed, cwd=CHECKOUT, text=True).split("\0")
        for name in filter(None, names):
            if (CHECKOUT / name).is_file():
                target = self.checkout / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(CHECKOUT / name, target)

    def run(
        self, environment: Environment, line: str, output: Path
    ) -> subprocess.Popen[bytes]:
        """Start a command in an environment; what it prints goes to a file."""
        with output.open("wb") as file:
            return subprocess.Popen(
                [*self._prefix(environment), "bash", "-c", line],
                cwd=self.checkout,
                env=self._variables(environment),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def _variables(self, environment: Environment) -> dict[str, str]:
        given = {
            k: v.format(folder=self.folder) for k, v in environment.variables.items()
        }
        python = "/usr/local" if self.debian else sys.base_prefix
        return {
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder / "tmp"),
            "PATH": f"{python}/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "PYTHONPATH": "" if environment.namespaces else "conformance",
        } | given

    def _prefix(self, environment: Environment) -> list[str]:
        """Return a command that makes the environment for the one that follows."""
        made: list[str] = []
        if os.geteuid() == 0:
            made += ["unshare", "--mount", "--propagation=private"]
            if environment.container:
                made += ["--pid", "--fork", "--kill-child", "--mount-proc"]
            made += ["bash", "-c", self._mounts(environment), "bash", "setpriv"]
            made += ["--inh-caps=-all"]
            if environment.container:
                made += [f"--bounding-set={IN_A_CONTAINER}"]
            if not environment.as_root:
                made += [
                    f"--reuid={self.user}",
                    f"--regid={self.user}",
                    "--clear-groups",
                ]
        if environment.open_files:
            made += ["prlimit", f"--nofile={environment.open_files}"]
        if not environment.namespaces:
            # Where Python is from a distribution, there may be no `python3`.
            own = f"python3.{sys.version_info.minor}"
            python = "python3" if self.debian else own
            made += [python, "-c", WITHOUT_NAMESPACES]
        return made

    def _mounts(self, environment: Environment) -> str:
        """Return a script that lets the user reach Python, and limits ``/dev/shm``.

        Root may have a Python in a folder that others cannot enter. It has to stay at
        its path, which its libraries know.
        """
        if self.debian:
            return self._into_debian(self.debian)
        source, target = map(shlex.quote, (sys.base_prefix, str(self.python)))
        steps = []
        if closed := _closed_folder(Path(sys.base_prefix)):
            steps += [
                f"mount --bind {source} {target}",
                f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(closed))}",
                f"mkdir -p {source}",
                f"mount --bind {target} {source}",
            ]
        if environment.container:
            steps.append("mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm")
        return " && ".join([*steps, 'exec "$@"'])

    def _into_debian(self, root: Path) -> str:
        """Return a script that makes a folder the root of the file system.

        It does so by pivot_root(8): the kernel lets no process that chroot(2) has
        confined make a user namespace.
        """
        folder = self.folder
        shared = [one for one in SHARED_WITH_DEBIAN if Path(one).exists()]
        return f"""
            set -e
            mount --bind {root} {root}
            mkdir -p {root}{folder}
            for one in {" ".join(shared)} {folder}; do
                test -d $one || touch {root}$one
                mount --rbind $one {root}$one
            done
            mount -t proc proc {root}/proc
            cd {root}
            PATH=$PATH:/usr/sbin pivot_root . mnt
            umount --lazy /mnt
            cd {self.checkout}
            exec "$@"
        """


def _debian(folder: Path, version: str) -> Path:
    """Install Debian's unstable distribution with a Python, which it calls python3."""
    root = folder / f"debian-{version}"
    packages = f"ca-certificates,gcc,git,libc6-dev,procps,python{version}-venv,uidmap"
    install = ("debootstrap", "--variant=minbase", f"--include={packages}", "sid", root)
    try:
        done = subprocess.run(install, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        sys.exit("debootstrap is not installed here: apt-get install debootstrap")
    if done.returncode:
        sys.exit(f"Debian cannot be installed:\n{done.stdout[-2000:]}{done.stderr}")
    (root / "usr/local/bin/python3").symlink_to(f"/usr/bin/python{version}")
    return root


def _closed_folder(path: Path) -> Path | None:
    """Return the first folder on the way to a path that others may not enter."""
    on_the_way = [*reversed(path.parents), path]
    return next((one for one in on_the_way if not one.stat().st_mode & 1), None)


def why_not_as_root() -> str:
    """Return why root cannot make the environments here; empty if it can."""
    if os.geteuid() != 0:
        return ""
    made = subprocess.run(
        ["unshare", "--mount", "true"], check=False, stderr=subprocess.DEVNULL
    )
    if made.returncode == 0:
        return ""
    return (
        "root may not mount here, which the environments need: run this as an ordinary "
        "user, or as root with CAP_SYS_ADMIN"
    )


def lines_of(kind: str) -> tuple[str, str]:
    """Return what a command of the README installs, and what it runs."""
    installing, _, running = command(kind).rpartition(" && ")
    return installing, running


def with_options(line: str, environment: Environment, options: Sequence[str]) -> str:
    """Return a command with the workers of an environment, and more options."""
    words = shlex.split(line)
    words[words.index("-n") + 1] = environment.workers if "auto" in words else "4"
    return shlex.join([*words, *options])


def leftovers(clone: Clone) -> set[str]:
    """Return the files of a clone's user and the processes of its commands."""
    files = {
        str(path)
        for folder in ("/dev/shm", clone.folder / "tmp", clone.folder / ("t" * 150))
        for pattern in LEFTOVERS
        for path in Path(folder).glob(pattern)
        if path.lstat().st_uid == clone.user
    }
    return files | set(_processes_of(clone.folder))


def _processes_of(folder: Path) -> Iterator[str]:
    """Yield the processes whose environment names a folder, as a command's does."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            if str(folder).encode() in (process / "environ").read_bytes():
                words = (process / "cmdline").read_text(errors="replace")
                yield f"{process.name} {words.replace(chr(0), ' ').strip()}"


def left_behind(clone: Clone, before: set[str], within: float) -> set[str]:
    """Return what is left that was not there before, when it had time to go."""
    wait_until(lambda: not leftovers(clone) - before, within)
    return leftovers(clone) - before


@contextmanager
def folder_for_all() -> Iterator[Path]:
    """Yield a new folder that every user may enter."""
    with tempfile.TemporaryDirectory(prefix="ordinary-", dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


class Runs:
    """Runs commands of the README in environments, each in a clone of its user's.

    Args:
        folder: where the clones are made.
        kinds: the commands, which run at the same time.
        options: more options of the commands.
    """

    def __init__(
        self, folder: Path, kinds: Sequence[str], options: Sequence[str]
    ) -> None:
        self.folder = folder
        self.options = options
        lines = [lines_of(kind) for kind in kinds]
        self.installing = " && ".join(dict.fromkeys(line for line, _ in lines))
        self.running = dict(zip(kinds, (line for _, line in lines), strict=True))
        self.clones: dict[str, Clone] = {}

    def clone_for(self, environment: Environment) -> Clone:
        """Return the clone of the user of an environment, with all installed."""
        user = USER if os.geteuid() == 0 and not environment.as_root else os.geteuid()
        name = f"{user}{environment.debian}"
        if name not in self.clones:
            clone = Clone(self.folder / name, user, environment.debian)
            self.clones[name] = clone
            output = self.folder / f"install-{name}.txt"
            plain = Environment("", environment.as_root)
            if clone.run(plain, self.installing, output).wait():
                sys.exit(f"{self.installing} failed:\n{output.read_text()}")
        return self.clones[name]

    def run(self, name: str) -> bool:
        """Run the commands in one environment; return whether they held."""
        environment = ENVIRONMENTS[name]
        clone = self.clone_for(environment)
        before, started = leftovers(clone), time.monotonic()
        outputs = {kind: self.folder / f"{name}-{kind}.txt" for kind in self.running}
        running = {
            kind: clone.run(
                environment,
                with_options(line, environment, self.options),
                outputs[kind],
            )
            for kind, line in self.running.items()
        }
        statuses = {kind: process.wait() for kind, process in running.items()}
        seconds = time.monotonic() - started
        for kind, status in statuses.items():
            text = outputs[kind].read_text(errors="replace")
            print(f"\n{name}: {environment.what}: {kind} command: exit {status}")
            print(text if status else _end_of(text), flush=True)
        print(f"\n{name}: {seconds:.0f} s", flush=True)
        left = left_behind(clone, before, within=10)
        if left:
            print("left behind:", *sorted(left), sep="\n  ")
        return not any(statuses.values()) and not left


def _end_of(text: str) -> str:
    """Return what a run says of what it did not judge, and its last lines."""
    marker = "Not judged here"
    if marker in text:
        return marker + text.rpartition(marker)[2].rstrip()
    return "\n".join(text.rstrip().splitlines()[-3:])


def main() -> None:
    """Run the command in the environments that were named, or in all."""
    parser = argparse.ArgumentParser(
        description="Run the main command of the README as ordinary users would.",
        epilog="environments: "
        + "; ".join(f"{name} ({one.what})" for name, one in ENVIRONMENTS.items()),
    )
    parser.add_argument("environment", nargs="*", metavar="ENVIRONMENT")
    which = parser.add_mutually_exclusive_group()
    kinds: dict[str, Any] = {"dest": "kinds", "action": "store_const"}
    text = "run the test command"
    which.add_argument("--test", const=["test"], default=["main"], help=text, **kinds)
    text = "run both at the same time"
    which.add_argument("--both", const=["main", "test"], help=text, **kinds)
    own, options = sys.argv[1:], []
    if "--" in own:
        own, options = own[: own.index("--")], own[own.index("--") + 1 :]
    chosen = parser.parse_args(own)
    usual = [name for name, one in ENVIRONMENTS.items() if not one.debian]
    names = chosen.environment or usual
    if unknown := sorted(set(names) - set(ENVIRONMENTS)):
        parser.error(f"there is no environment {unknown[0]}; see --help")
    if refused := why_not_as_root():
        sys.exit(refused)
    failed, not_run = [], []
    with ExitStack() as stack:
        folder = stack.enter_context(folder_for_all())
        runs = Runs(folder, chosen.kinds, options)
        for name in names:
            if os.geteuid() != 0 and ENVIRONMENTS[name].needs_root:
                not_run.append(name)
            elif not runs.run(name):
                failed.append(name)
    if not_run:
        print(f"\nnot run, since they need root: {', '.join(not_run)}")
    if failed:
        sys.exit(f"\nfailed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
