"""Connections and queues over sockets that keep packets whole."""
import errno
import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from multiprocessing import context, reduction, util
from queue import Empty, Full

from . import wire
from .store import state

RECEIVE = wire.INLINE + 4096
BUFFER = 4 << 20
SO_SNDBUFFORCE = 32


def _enlarge(sock):
    for option in (SO_SNDBUFFORCE, socket.SO_SNDBUF):
        try:
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER)
            return
        except OSError:
            pass


def _wait(sock, events, timeout):
    """Wait for an event, at most `timeout` seconds; return whether it is there."""
    poll = select.poll()
    poll.register(sock, events)
    return bool(poll.poll(None if timeout is None else max(0, timeout) * 1000))


class Connection:
    """One end of a pipe."""

    def __init__(self, sock, readable=True, writable=True):
        self._sock, self.readable, self.writable = sock, readable, writable

    # -- as of multiprocessing.connection.Connection

    @property
    def closed(self):
        return self._sock is None

    def _check(self, what=None):
        if self._sock is None:
            raise OSError("handle is closed")
        if what is not None and not what:
            raise OSError("connection is " + ("write-only" if what is self.readable else "read-only"))
        return self._sock

    def fileno(self):
        return self._check().fileno()

    def close(self):
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def poll(self, timeout=0.0):
        self._check()
        if not self.readable:
            raise OSError("connection is write-only")
        return _wait(self._sock, select.POLLIN, timeout)

    def _may_write(self):
        self._check()
        if not self.writable:
            raise OSError("connection is read-only")

    def send(self, value):
        self._may_write()
        packet = wire.make_packet(value)
        try:
            wire.send_fds(self._sock, packet.data, packet.out.fds)
        finally:
            packet.close()

    def send_bytes(self, data, offset=0, size=None):
        self._may_write()
        view = memoryview(data).cast("B")
        if offset < 0 or offset > len(view):
            raise ValueError("offset is out of range")
        if size is None:
            size = len(view) - offset
        elif size < 0 or offset + size > len(view):
            raise ValueError("size is out of range")
        packet = wire.make_packet(view[offset : offset + size], plain=True)
        try:
            wire.send_fds(self._sock, packet.data, packet.out.fds)
        finally:
            packet.close()

    def _take(self, flags=0):
        self._check()
        if not self.readable:
            raise OSError("connection is write-only")
        try:
            data, fds, truncated = wire.receive_fds(self._sock, RECEIVE, flags)
        except ConnectionResetError:  # said once; what the other end has sent comes next
            return self._take(flags)
        if not data:
            raise EOFError
        return wire.open_packet(data, fds, truncated)

    def recv(self, _flags=0):
        _, body, message = self._take(_flags)
        try:
            return wire.loads(body, message)
        finally:
            message.close()

    def recv_bytes(self, maxlength=None):
        plain, body, message = self._take()
        message.close()
        if maxlength is not None and len(body) > maxlength:
            raise OSError("got more bytes than expected")
        return body

    def recv_bytes_into(self, buffer, offset=0):
        body = self.recv_bytes()
        view = memoryview(buffer).cast("B")
        if offset + len(body) > len(view):
            from multiprocessing import BufferTooShort

            raise BufferTooShort(body)
        view[offset : offset + len(body)] = body
        return len(body)

    def __reduce_ex__(self, protocol):
        sock = self._check()
        if context.get_spawning_popen() is not None:
            return _rebuild_spawned, (reduction.DupFd(sock.fileno()), self.readable, self.writable)
        index = wire.outgoing().add_fd(os.dup(sock.fileno()))
        return _rebuild_sent, (index, self.readable, self.writable)


def _rebuild_spawned(fd, readable, writable):
    return Connection(_adopt(fd.detach()), readable, writable)


def _rebuild_sent(index, readable, writable):
    return Connection(_adopt(wire.incoming().take(index)), readable, writable)


def _adopt(fd):
    os.set_inheritable(fd, False)
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fd)


def Pipe(duplex=True):
    one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    _enlarge(one)
    _enlarge(two)
    if duplex:
        return Connection(one), Connection(two)
    return Connection(one, writable=False), Connection(two, readable=False)


class SimpleQueue:
    """Packets are atomic, so there are no locks to be left behind."""

    def __init__(self, *, ctx):
        self._reader, self._writer = Pipe(duplex=False)
        self._rlock, self._wlock = ctx.Lock(), ctx.Lock()  # multiprocessing.pool asks for them

    def close(self):
        self._reader.close()
        self._writer.close()

    def empty(self):
        return not self._reader.poll()

    def get(self):
        return self._reader.recv()

    def put(self, obj):
        self._writer.send(obj)

    def __getstate__(self):
        context.assert_spawning(self)
        return self._reader, self._writer, self._rlock, self._wlock

    def __setstate__(self, found):
        self._reader, self._writer, self._rlock, self._wlock = found


class _Outbox:
    """What has been put and not yet been taken by the kernel; the thread knows no more."""

    def __init__(self, sock):
        self.sock = sock
        self.packets = deque()
        self.condition = threading.Condition()
        self.thread = None
        self.ending = False
        self.at_exit = None

    def put(self, packet):
        with self.condition:
            if not self.packets:
                try:
                    wire.send_fds(self.sock, packet.data, packet.out.fds, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    pass
                except BaseException:
                    packet.close()
                    raise
                else:
                    packet.close()
                    return
            self.packets.append(packet)
            if self.thread is None:
                self.thread = threading.Thread(target=self.run, name="arena queue", daemon=True)
                try:
                    self.thread.start()
                except BaseException:
                    self.thread = None
                    self.packets.pop().close()
                    raise
            self.condition.notify_all()

    def run(self):
        while True:
            with self.condition:
                while not self.packets:
                    if self.ending:
                        self.sock.close()
                        if self.at_exit is not None:
                            self.at_exit.cancel()
                        return
                    self.condition.wait()
                packet = self.packets[0]
            try:
                _wait(self.sock, select.POLLOUT, None)
                wire.send_fds(self.sock, packet.data, packet.out.fds, socket.MSG_DONTWAIT)
            except BlockingIOError:
                time.sleep(0.002)
                continue
            except OSError as error:
                if error.errno in (errno.ENOBUFS, errno.ETOOMANYREFS, errno.EMFILE, errno.ENOMEM):
                    time.sleep(0.01)
                    continue
                # Nobody can receive it any more.
            with self.condition:
                self.packets.popleft()
                packet.close()
                self.condition.notify_all()

    def end(self):
        with self.condition:
            self.ending = True
            if self.thread is None:
                self.sock.close()
                if self.at_exit is not None:
                    self.at_exit.cancel()
            self.condition.notify_all()

    def join(self):
        if self.thread is not None:
            with self.condition:
                while self.packets:
                    self.condition.wait()

    def after_fork(self):
        """In the child the messages of the parent are the parent's."""
        for packet in self.packets:
            packet.out.fds = []
        self.packets = deque()
        self.condition = threading.Condition()
        self.thread = None


class Queue:
    def __init__(self, maxsize=0, *, ctx):
        if maxsize <= 0:
            maxsize = 0x7FFFFFFF
        self._maxsize = maxsize
        self._sem = ctx.BoundedSemaphore(maxsize)
        self._reader, self._writer = Pipe(duplex=False)
        self._prepare()

    def _prepare(self):
        self._closed = False
        self._flush = True
        self._outbox = _Outbox(self._writer._sock)
        self._join = util.Finalize(None, _Outbox.join, (self._outbox,), exitpriority=-5)
        self._outbox.at_exit = self._join
        weakref.finalize(self, self._outbox.end).atexit = False
        util.register_after_fork(self, Queue._after_fork)

    def _after_fork(self):
        self._outbox.after_fork()
        self._join = util.Finalize(None, _Outbox.join, (self._outbox,), exitpriority=-5)
        self._outbox.at_exit = self._join

    def __getstate__(self):
        context.assert_spawning(self)
        return self._maxsize, self._sem, self._reader, self._writer

    def __setstate__(self, found):
        self._maxsize, self._sem, self._reader, self._writer = found
        self._prepare()

    def put(self, obj, block=True, timeout=None):
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")
        packet = self._make(obj)
        if not self._sem.acquire(block, timeout):
            packet.close()
            raise Full
        counted = False
        try:
            self._count()
            counted = True
            self._outbox.put(packet)
        except BaseException:
            packet.close()
            if counted:
                self._uncounted()
            self._sem.release()
            raise

    def _make(self, obj):
        return wire.make_packet(obj)

    def _count(self):
        pass

    def _uncounted(self):
        pass

    def get(self, block=True, timeout=None):
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            if not block:
                remaining = 0
            elif until is None:
                remaining = None
            else:
                remaining = max(0, until - time.monotonic())
            if not _wait(self._reader._sock, select.POLLIN, remaining):
                raise Empty
            try:
                _, body, message = self._reader._take(socket.MSG_DONTWAIT)
            except BlockingIOError:  # another reader was faster
                continue
            except EOFError:
                raise
            except BaseException:
                self._uncount()
                raise
            break
        self._uncount()
        try:
            return wire.loads(body, message)
        finally:
            message.close()

    def _uncount(self):
        try:
            self._sem.release()
        except ValueError:
            pass

    def qsize(self):
        return self._maxsize - self._sem.get_value()

    def empty(self):
        return not self._reader.poll()

    def full(self):
        return self._sem.get_value() == 0

    def get_nowait(self):
        return self.get(False)

    def put_nowait(self, obj):
        return self.put(obj, False)

    def close(self):
        if not self._closed:
            self._closed = True
            self._reader.close()
            self._outbox.end()

    def join_thread(self):
        if not self._closed:
            raise AssertionError(f"Queue {self!r} not closed")
        if self._flush:
            self._outbox.join()

    def cancel_join_thread(self):
        self._flush = False
        self._join.cancel()


class JoinableQueue(Queue):
    def __init__(self, maxsize=0, *, ctx):
        super().__init__(maxsize, ctx=ctx)
        self._unfinished = ctx.Semaphore(0)
        self._all_done = ctx.Condition()

    def __getstate__(self):
        return super().__getstate__(), self._all_done, self._unfinished

    def __setstate__(self, found):
        rest, self._all_done, self._unfinished = found
        super().__setstate__(rest)

    def _count(self):
        with self._all_done:
            self._unfinished.release()

    def _uncounted(self):
        self._unfinished.acquire(False)

    def task_done(self):
        with self._all_done:
            if not self._unfinished.acquire(False):
                raise ValueError("task_done() called too many times")
            if self._unfinished._semlock._is_zero():
                self._all_done.notify_all()

    def join(self):
        with self._all_done:
            if not self._unfinished._semlock._is_zero():
                self._all_done.wait()
