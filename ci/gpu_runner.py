"""Functions that the programs for GPU runners share: host lock and environment.

If a runner cannot judge, `Unfit` is raised with one sentence, and the exit status is 2,
never that of a verdict. The module uses only the standard library, because it runs
before anything is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from gpu_fitness import UNFIT, Unfit

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent
FITNESS = HERE / "gpu_fitness.py"
LOCK = "/var/tmp/shared-tensor-gpu.lock"
CLOSED = 1
INSTALL_LIMIT = 1200.0
ASK_LIMIT = 120.0
MISSING = re.compile(
    r"(?:No matching distribution found for|satisfies the requirement) ([^\s;]+)"
)
PAUSE = 0.2


class Parser(argparse.ArgumentParser):
    """A parser that reports a usage error in one line, with the status of `Unfit`."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit."""
        self.exit(UNFIT, f"{self.prog}: {message}; see --help.\n")


def add_runner_options(parser: argparse.ArgumentParser) -> None:
    """Add the options about the runner's environment and lock."""
    add = parser.add_argument
    text = "use the environment of this interpreter; it needs the suite and CuPy"
    add("--python", metavar="PATH", help=text)
    text = "install only from the wheels in this folder, without a network"
    add("--wheels", metavar="FOLDER", type=Path, help=text)
    text = "also install this pip requirement (may be repeated)"
    add("--install", metavar="WHAT", action="append", default=[], help=text)
    text = "the lock file of the GPU programs on this host (default: %(default)s)"
    add("--lock", metavar="FILE", default=LOCK, help=text)
    text = "how long to wait for the lock (default: %(default)g)"
    add("--wait", metavar="SECONDS", type=float, default=900.0, help=text)
    text = "rehearse on the emulated runtime; its results never count as CUDA"
    add("--emulated", action="store_true", help=text)


# One at a time


@contextlib.contextmanager
def turn(file: str, wait: float) -> Iterator[int]:
    """Hold the lock of this host for the block; yield its descriptor.

    A process that inherits the descriptor keeps the lock. So no other program starts
    while the suite outlives this program.

    Raises:
        Unfit: another program has held the lock for the whole time.
    """
    deadline = time.monotonic() + wait
    told = False
    while (held := _taken(file)) is None:
        if not told:
            print(
                f"Another program has {file}; waiting for up to {wait:g} s.", flush=True
            )
            told = True
        if time.monotonic() > deadline:
            raise Unfit(
                f"another program has had {file} for {wait:g} s; look at what else "
                "uses this host's GPUs, or give a longer --wait."
            )
        time.sleep(PAUSE)
    try:
        yield held
    finally:
        os.close(held)


def _taken(file: str) -> int | None:
    """Return a descriptor with the lock, or None if another program has it."""
    try:
        held = _opened(file)
    except OSError as error:
        raise Unfit(f"the lock {file} cannot be opened ({error.strerror}).") from None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(held), os.stat(file)):  # it may have been removed
            return held
    except OSError:
        pass
    os.close(held)
    return None


def _opened(file: str) -> int:
    # In a shared folder, the file of another user can be opened only without O_CREAT.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    with contextlib.suppress(FileNotFoundError):
        return os.open(file, flags)
    with contextlib.suppress(FileExistsError):
        return os.open(file, flags | os.O_CREAT | os.O_EXCL, 0o644)
    return os.open(file, flags)


# The fitness of this runner


def examined(file: Path, *, emulated: bool) -> dict[str, Any]:
    """Return the facts of the fitness check, which it writes to a file.

    Raises:
        Unfit: the check shows that this runner cannot judge.
    """
    option = ["--emulated"] if emulated else []
    command = [sys.executable, str(FITNESS), "--facts", str(file), *option]
    try:
        done = subprocess.run(
            command, stderr=subprocess.PIPE, text=True, timeout=ASK_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unfit(f"the driver does not answer within {ASK_LIMIT:g} s.") from None
    if done.returncode:
        said = done.stderr.strip() or f"the check ended with status {done.returncode}."
        raise Unfit(said.partition(": ")[2] if said.startswith("This runner") else said)
    found: dict[str, Any] = json.loads(file.read_text())
    return found


# An environment


def make_environment(folder: Path, extra: str, options: argparse.Namespace) -> str:
    """Make an environment with the suite and a fitting CuPy; return its interpreter.

    Raises:
        Unfit: the environment cannot be made.
    """
    wheels = options.wheels
    if wheels and not any(wheels.glob("*.whl")):
        raise Unfit(f"{wheels} has no wheels; {_filling(extra)}")
    python = str(folder / "bin" / "python")
    what = [f"{CHECKOUT}[conformance,{extra}]", *options.install]
    source = ["--no-index", "--find-links", str(wheels)] if wheels else []
    try:
        _called([sys.executable, "-m", "venv", str(folder)])
        _called([python, "-m", "pip", "install", "-q", *source, *what])
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        print(said, file=sys.stderr)
        raise Unfit(_why_not(said, wheels, extra)) from None
    return python


def _called(command: Sequence[str]) -> None:
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    subprocess.run(
        command,
        env=os.environ | quiet,
        stderr=subprocess.PIPE,
        text=True,
        timeout=INSTALL_LIMIT,
        check=True,
    )


def _why_not(said: str, wheels: Path | None, extra: str) -> str:
    missing = MISSING.findall(said)
    if wheels and missing:
        return (
            f"{wheels} has no wheel of {missing[-1]} for Python "
            f"{platform.python_version()} on {platform.machine()}; {_filling(extra)}"
        )
    return "its environment could not be made; the lines above say why."


def _filling(extra: str) -> str:
    return (
        "fill it where there is a network: pip wheel --wheel-dir FOLDER hatchling "
        f"'.[conformance,{extra}]'"
    )


def refuse_unseen(python: str, implementation: str, device: str) -> None:
    """Check that the implementation can use the device in its environment.

    A build that cannot, for example because it needs a newer driver, cannot be judged,
    so its clauses must not be reported as broken.

    Raises:
        Unfit: the implementation cannot use it, or the environment has no suite.
    """
    command = [python, str(HERE / "gpu_seen.py"), implementation, device]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=ASK_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unfit(
            f"{implementation} does not say within {ASK_LIMIT:g} s whether it can use "
            "the device."
        ) from None
    except OSError as error:
        raise Unfit(f"{python} cannot be run ({error.strerror}).") from None
    if done.returncode == UNFIT:
        raise Unfit(done.stdout.strip())
