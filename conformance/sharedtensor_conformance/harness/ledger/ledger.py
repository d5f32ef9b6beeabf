"""The ledger: counts the resources of the processes below a supervisor, from /proc.

It uses only the standard library, because the supervisor imports it without
site-packages. It does not use the implementation: descriptors, mappings, threads,
processes, segments and temporary files are counted as the kernel reports them.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Set
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sharedtensor_conformance.harness.kernel import process_tree
from sharedtensor_conformance.harness.kernel.process_tree import SHM

if TYPE_CHECKING:
    from sharedtensor_conformance.harness.supervisor.supervisor import Supervisor

DRIVER_PREFIX = "cuda.shm."
"""The prefix of files in ``/dev/shm`` that NVIDIA's driver makes for itself."""

SHARED_MAPPING = re.compile(
    rb"/dev/shm/(?!cuda\.shm\.)|/memfd:|/dev/zero \(deleted\)|/SYSV"
)
SHARED_FILE = re.compile(r"/dev/shm/(?!cuda\.shm\.)|/memfd:")
"""The beginning of the target of a shared memory descriptor."""

TEMPORARY_FOLDER = re.compile(r"/\S*/sts-[^/]+/t/")
"""The folder of a stage's temporary files."""

VARIABLE_PARTS = re.compile(
    r"(?:(?<=^sem\.)|(?<=/dev/shm/sem\.))[^/]+"  # of a semaphore of glibc
    r"|(?<=tmp)\w{8}$"  # of `tempfile`
    r"|(?:(?<=pymp-)|(?<=listener-))\w{8}"  # of `multiprocessing`
    r"|(?<=pym-)\d+-\w{8}"  # of an arena of `multiprocessing.heap`
    r"|(?<=-)(?=[a-z_]*\d)[a-z\d_]{8}(?!\w)"  # of `tempfile`, after a prefix
    r"|(?<=[._-])(?=[A-Za-z]*\d|[a-z]+[A-Z]|[A-Z]+[a-z])[A-Za-z\d]+"
    r"|[0-9a-f]{8,}|\d+"
)
"""The parts of a name that differ each time.

Besides the names of known makers, these are: a run of letters and digits after one of
``._-`` that contains a digit or both upper and lower case letters; and everywhere,
numbers and at least eight hexadecimal digits. So a random name of only lower case
letters, from an unknown maker, stays.
"""


def account(pid: int) -> dict[str, Any] | None:
    """Return the counts of one process; None if it has ended."""
    try:
        if process_tree.has_ended(pid):
            return None
        _, _, group, *_ = process_tree.stat(pid)
        open_to, maps = targets(pid), shared_mapping_lines(pid)
        mapped = [_mapped_name(line) for line in maps]
        return {
            "command": process_tree.command(pid),
            "descriptors": len(open_to),
            "mappings": len(mapped),
            "targets": kinds(open_to),
            "mapped": kinds(mapped),
            "files_open": files_open(pid),
            "files_mapped": sorted({mapped_file(line) for line in maps}),
            "threads": len(os.listdir(f"/proc/{pid}/task")),
            "group": int(group),
        }
    except OSError:
        return None


def targets(pid: int) -> list[str]:
    """Return the targets of a process's descriptors."""
    found = []
    with suppress(OSError):  # it ended meanwhile
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):  # this one was closed meanwhile
                found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return sorted(found)


def files_open(pid: int) -> list[str]:
    """Return the shared memory files with an open descriptor in a process, each once.

    Two descriptors of one file count once.
    """
    found = set()
    with suppress(OSError):  # it ended meanwhile
        for fd in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{fd}"
            with suppress(FileNotFoundError):  # this one was closed meanwhile
                if SHARED_FILE.match(os.readlink(path)):
                    found.add(identity(os.stat(path)))
    return sorted(found)


def files_mapped(pid: int) -> list[str]:
    """Return the shared memory files that a process has mapped, each once.

    Raises:
        OSError: there is no such process.
    """
    return sorted({mapped_file(line) for line in shared_mapping_lines(pid)})


def shared_mapping_lines(pid: int) -> list[bytes]:
    """Return the lines of ``/proc/PID/maps`` for shared memory, proc(5).

    The kernel takes a fifth of a millisecond to write them for a process with NumPy.

    Raises:
        OSError: there is no such process.
    """
    with open(f"/proc/{pid}/maps", "rb") as file:
        return [line for line in file if SHARED_MAPPING.search(line)]


def _mapped_name(line: bytes) -> str:
    return os.fsdecode(line.split(maxsplit=5)[5]).strip()


def identity(status: os.stat_result) -> str:
    """Return the identity of a file: its device and inode."""
    major, minor = os.major(status.st_dev), os.minor(status.st_dev)
    return f"{major:x}:{minor:x}:{status.st_ino}"


def mapped_file(line: bytes) -> str:
    """Return the `identity` of the file in a line of ``/proc/PID/maps``, proc(5)."""
    device, inode = line.split(maxsplit=5)[3:5]
    major, minor = (int(number, 16) for number in device.split(b":"))
    return f"{major:x}:{minor:x}:{int(inode)}"


def file_at(pid: int, address: int) -> str:
    """Return the `identity` of the file that a process has mapped there; "" for none.

    The name of the mapping is not used, because a file may have got its name later.
    """
    with open(f"/proc/{pid}/maps", "rb") as file:
        for line in file:
            begin, end = line.split(maxsplit=1)[0].split(b"-")
            if int(begin, 16) <= address < int(end, 16):
                found = mapped_file(line)
                return "" if found.endswith(":0") else found
    return ""


def mapped_sizes(pid: int) -> dict[str, int]:
    """Return how many bytes of each shared memory file a process has mapped.

    The files are identified by `identity`.
    """
    found: Counter[str] = Counter()
    for line in shared_mapping_lines(pid):
        begin, end = line.split(maxsplit=1)[0].split(b"-")
        found[mapped_file(line)] += int(end, 16) - int(begin, 16)
    return dict(found)


def kinds(names: Iterable[str]) -> dict[str, int]:
    """Return the count of each kind of name, without the parts that differ."""
    return dict(Counter(map(kind, names)))


def kind(name: str) -> str:
    """Return the name of a file, mapping or process with ``*`` for what differs."""
    if name.startswith(("socket:", "pipe:")):
        return name.partition(":")[0]
    name = name.removeprefix("anon_inode:").removesuffix(" (deleted)").strip("[]")
    return VARIABLE_PARTS.sub("*", TEMPORARY_FOLDER.sub("TMPDIR/", name))


def semaphores(pid: int) -> set[int]:
    """Return the inodes of the named semaphores that a process has mapped.

    The mappings do not show their names, because glibc makes a semaphore under a
    temporary name and links it to its name.
    """
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            mapped = [line.split() for line in file if b"/dev/shm/sem." in line]
    except OSError:
        return set()
    return {int(fields[4]) for fields in mapped}


def sockets(pid: int) -> list[str]:
    """Return the paths of the UNIX sockets that a process has open."""
    inodes = {
        target[len("socket:[") : -1]
        for target in targets(pid)
        if target.startswith("socket:[")
    }
    try:
        # Paths are bytes: those of other programs need not be UTF-8.
        with open(f"/proc/{pid}/net/unix", errors="surrogateescape") as file:
            lines = file.read().splitlines()[1:]
    except OSError:
        return []  # it ended meanwhile
    found = set()
    for line in lines:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[6] in inodes:
            found.add(fields[7])
    return sorted(found)


def files_below(folder: str) -> list[str]:
    """Return the paths below `folder`, relative to it."""
    return sorted(  # `os.walk` does without what is removed meanwhile
        os.path.relpath(os.path.join(root, name), folder)
        for root, folders, files in os.walk(folder)
        for name in folders + files
    )


def segment_regex(pattern: str) -> re.Pattern[str]:
    """Return the regular expression of a `segment_pattern`, with a group for the pid.

    An empty pattern matches no name.
    """
    none = re.escape("{pid}")
    return re.compile(pattern.replace("{pid}", r"(?P<pid>\d+)") or none)


class Segments:
    """Finds the implementation's files in ``/dev/shm``.

    In a private ``/dev/shm`` every file counts, except those of NVIDIA's driver. In a
    shared one, a file counts if it did not exist at the start and its name matches the
    implementation's pattern with one of the `known_pids`: the pid of a process that was
    found below this one.
    """

    def __init__(self, pattern: str, private: bool, known_pids: Set[int]) -> None:
        self.private = private
        self.known_pids = known_pids
        self.before = set() if private else set(os.listdir(SHM))
        self._pattern = segment_regex(pattern)

    def names(self) -> list[str]:
        """Return the names that belong to the implementation, without semaphores."""
        found = self.names_and_semaphores()
        return [name for name in found if not name.startswith(("sem.", DRIVER_PREFIX))]

    def files(self) -> dict[str, dict[str, Any]]:
        """Return size and identity of the file of each of these names.

        A file that is removed meanwhile is left out.
        """
        found = {}
        for name in self.names():
            with suppress(FileNotFoundError):
                status = os.stat(os.path.join(SHM, name), follow_symlinks=False)
                found[name] = {"size": status.st_size, "file": identity(status)}
        return found

    def names_and_semaphores(self) -> list[str]:
        """Return the same with the semaphores of a private ``/dev/shm``."""
        new = sorted(set(os.listdir(SHM)) - self.before)
        return [
            name
            for name in new
            if self.private or self._is_implementation_segment(name)
        ]

    def _is_implementation_segment(self, name: str) -> bool:
        found = self._pattern.match(name)
        if not found:
            return False
        pid = found.groupdict().get("pid")
        return pid is None or int(pid) in self.known_pids


# What a supervisor finds below itself


def snapshot(supervisor: Supervisor) -> dict[str, Any]:
    """Return the ledger of all descendants of a supervisor."""
    accounts = {pid: account(pid) for pid in supervisor.tree.living()}
    processes = {str(pid): held for pid, held in accounts.items() if held}
    return {"processes": processes, **names(supervisor)}


def overview(supervisor: Supervisor) -> dict[str, Any]:
    """Return the ledger with only the command lines of the processes.

    Reading the resources of the processes takes most of the time.
    """
    living = supervisor.tree.living()
    processes = {str(pid): process_tree.command(pid) for pid in living}
    return {"processes": processes, **names(supervisor)}


def names(supervisor: Supervisor) -> dict[str, list[str]]:
    """Return the names of segments and of temporary files."""
    files = files_below(supervisor.temporary)
    return {"segments": supervisor.segments.names(), "files": files}


def sizes(supervisor: Supervisor) -> dict[str, int]:
    """Return the sizes of the files of segments, by `identity`."""
    return {one["file"]: one["size"] for one in supervisor.segments.files().values()}


def details(supervisor: Supervisor, pid: int) -> dict[str, list[str]]:
    """Return the targets of a process's descriptors and its sockets' paths."""
    return {"targets": targets(pid), "sockets": sockets(pid)}


def segment_status(supervisor: Supervisor, name: str) -> dict[str, int]:
    """Return mode, uid and size of a segment."""
    found = os.stat(os.path.join(SHM, name))
    mode = stat.S_IMODE(found.st_mode)
    return {"mode": mode, "uid": found.st_uid, "size": found.st_size}
