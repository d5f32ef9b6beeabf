"""The small functions that programs have in common, as source."""

from __future__ import annotations

PEER = '''
class Peer:
    """A process whose steps are a generator: each `yield` ends a turn of it."""

    def __init__(self, steps, *given):
        self.turn, theirs = Pipe()
        args = (steps, theirs, *given)
        self.process = context.Process(target=run, args=args, daemon={daemon})
        self.process.start()
        theirs.close()
{methods}

def run(steps, turn, *given):
    """Take turns with the process that started this one, until it has gone."""
    signal.alarm(4 * TIMEOUT)  # it ends then, whatever happens
    with suppress(EOFError):
        turn.recv()
        for found in steps(*given):
            turn.send(found)
            turn.recv()
'''

IN_ONE = '''
    def go_on(self):
        self.turn.send("it is your turn")
        if not self.turn.poll(TIMEOUT):
            raise TimeoutError
        return self.turn.recv()
'''

IN_TWO = '''
    def go_on(self):
        self.tell()
        return self.wait()

    def tell(self):
        self.turn.send("it is your turn")

    def wait(self):
        if not self.turn.poll(TIMEOUT):
            raise TimeoutError
        return self.turn.recv()
'''

GROWTH = '''
def segments():
    """Return how many segments of these processes there are."""
    ours = PATTERN.replace("{pid}", f"({'|'.join(map(str, pids()))})")
    return sum(bool(re.match(ours, name)) for name in os.listdir("/dev/shm"))


def descriptors(pid):
    """Return how many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def mappings(pid):
    """Return how many mappings of shared memory a process has."""
    with open(f"/proc/{pid}/maps") as file:
        return sum("/dev/shm/" in line or "/memfd:" in line for line in file)


def grown(held, before):
    """Return what is more than before; what is let go of may take GRACE seconds."""
    deadline = time.monotonic() + GRACE
    while True:
        now = held()
        more = {what: now[what] - before[what] for what in now}
        more = {what: count for what, count in more.items() if count > 0}
        if not more or time.monotonic() > deadline:
            return more
        time.sleep(0.1)
'''

TOO_LATE = '''
def too_late(number, frame):
    """Do not wait for ever."""
    raise TimeoutError
'''

UNPICKLABLE = '''
class Unpicklable:
    """An object that raises when it is pickled."""

    def __reduce__(self):
        raise ValueError("this object cannot be pickled")
'''

UNRECEIVABLE = '''
class Unreceivable:
    """An object that raises when it is unpickled."""

    def __reduce__(self):
        return refuse_to_arrive, ()


def refuse_to_arrive():
    raise ValueError("this object cannot be unpickled")
'''

CYCLE = '''
class Cycle:
    """An object that refers to itself, and to another."""

    def __init__(self, held):
        self.held, self.itself = held, self
'''
