"""`recv()` raises `EOFError` after a signal handler has interrupted another one."""

import signal
import sys

import torch.multiprocessing as mp

INTERRUPTIONS = 5000
INTERVAL = 0.0003  # seconds
NUMBERS = 10_000


class Interrupted(Exception):
    """What the handler raises."""


def interrupt(*ignored):
    """Raise in whatever the program does."""
    raise Interrupted


def send_numbers(writer):
    """Send numbers in order, until the program ends."""
    number = 0
    while True:
        writer.send(number)
        number += 1


def receive_wrongly(reader):
    """Receive numbers and be interrupted, again and again; return what is wrong."""
    last = reader.recv()
    for _ in range(INTERRUPTIONS):
        try:
            signal.setitimer(signal.ITIMER_REAL, INTERVAL)
            for _ in range(NUMBERS):
                number = reader.recv()
                if not isinstance(number, int) or number <= last:
                    return f"returned {number!r} after {last}"
                last = number
        except Interrupted:
            continue
        except Exception as error:
            return f"raised {type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    reader, writer = mp.Pipe(duplex=False)
    context = mp.get_context("spawn")
    context.Process(target=send_numbers, args=(writer,), daemon=True).start()
    signal.signal(signal.SIGALRM, interrupt)
    wrong = receive_wrongly(reader)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    if not wrong:
        sys.exit(1)
    print(f"after an interrupted recv(), the next one {wrong}")
