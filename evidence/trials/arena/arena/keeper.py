"""Names of arenas in /dev/shm, and the process that removes what nobody needs.

The keeper keeps no books. A name is needed while anybody has a lock on its file, and the
kernel gives the locks of dead processes and lost messages back; so the keeper looks at
the files of its program a few times a second, and removes those without a lock. It can be
killed and replaced at any time. It ends when its program has no names any more.
"""
import errno
import fcntl
import os
import secrets
import select
import signal
import socket
import struct
import sys
import time

DIRECTORY = "/dev/shm"
_FLOCK = struct.Struct("@hhqqi4x")
INTERVAL = 0.2
LINGER = 0.6
session = ""


def address(of):
    return f"\0arena-keeper-{os.geteuid()}-{of}"


def unlocked(fd):
    """Take everything exclusively, if nobody else has anything."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def remove_if_unused(fd, name):
    """Remove the name unless somebody else needs the arena; fd is our last use of it."""
    try:
        if unlocked(fd):
            unlink_if_same(fd, name)
    except OSError:
        pass


def unlink_if_same(fd, name):
    """Remove the name, if it still is this file's."""
    path = os.path.join(DIRECTORY, name)
    try:
        mine, there = os.fstat(fd), os.lstat(path)
        if (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino):
            os.unlink(path)
    except OSError:
        pass


# -- in the processes that share


def get_session():
    global session
    if not session:
        session = secrets.token_hex(6)
    return session


def _answers():
    """Return whether a keeper lives; None where that cannot be seen."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.setblocking(False)
            sock.connect(address(session))
            return True
    except ConnectionRefusedError:
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None


def ensure(*, needed=False):
    """See that there is a keeper; raise, where it is needed and cannot be."""
    get_session()
    if _answers() or (not needed and _answers() is None):
        return
    import subprocess

    try:
        starting = subprocess.Popen(
            [sys.executable, "-I", "-S", "-E", os.path.abspath(__file__), session],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            cwd="/", start_new_session=True,
        )
        status = starting.wait(15)
    except Exception as error:
        if needed:
            raise OSError(f"the keeper of names cannot be started: {error}") from error
        return
    if status and needed:
        raise OSError(f"the keeper of names cannot be started: status {status}")


def make_file():
    """Return a new file without a name as yet, and its name to be."""
    ensure(needed=True)
    fd = os.open(DIRECTORY, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)
    except BaseException:
        os.close(fd)
        raise
    return fd, f"arena-{os.getpid()}-{session}{secrets.token_hex(8)}"


def publish(fd, name):
    """Give the file its name, now that it has a lock and a header."""
    os.link(f"/proc/self/fd/{fd}", os.path.join(DIRECTORY, name), src_dir_fd=0, follow_symlinks=True)
    ensure()


# -- the keeper


def sweep(of):
    """Remove what nobody needs; return how many names are left."""
    left = 0
    for name in os.listdir(DIRECTORY):
        parts = name.split("-")
        if len(parts) != 3 or parts[0] != "arena" or not parts[2].startswith(of):
            continue
        try:
            fd = os.open(os.path.join(DIRECTORY, name), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            left += error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
            continue
        try:
            if os.fstat(fd).st_uid == os.geteuid():
                remove_if_unused(fd, name)
                left += os.path.lexists(os.path.join(DIRECTORY, name))
        finally:
            os.close(fd)
    return left


def listen(of):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.bind(address(of))
    except OSError:
        sock.close()
        return None
    sock.listen(128)
    sock.setblocking(False)
    return sock


def keep(of, sock):
    idle_since = time.monotonic()
    while True:
        try:
            if select.select([sock], [], [], INTERVAL)[0]:
                for _ in range(1000):
                    try:
                        sock.accept()[0].close()
                    except OSError:
                        break
                idle_since = time.monotonic()
                time.sleep(0.02)
            if sweep(of):
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > LINGER:
                sock.close()
                if not sweep(of):
                    return
                sock = listen(of)
                if sock is None:
                    return
        except (OSError, MemoryError):
            time.sleep(INTERVAL)


def main(of):
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    sock = listen(of)
    if sock is None:
        return 0  # there is one
    if os.fork():
        return 0
    keep(of, sock)
    return 0


if __name__ == "__main__":
    os._exit(main(sys.argv[1]))
