"""The small functions that programs have in common, as source."""

from __future__ import annotations

PEER = '''
class Peer:
    """A process whose steps are a generator: each `yield` ends a turn of it."""

    def __init__(self, steps, *given):
        self.turn, theirs = Pipe()
        self.process = context.Process(target=run, args=(steps, theirs, *given))
        self.process.daemon = {daemon}
        self.process.start()
{noted}        theirs.close()
        self.turn.recv()  # it runs
{methods}

def run(steps, turn, *given):
    """Take turns with the process that started this one, until it has gone."""
    signal.alarm(4 * TIMEOUT)  # it ends then, whatever happens
    with suppress(EOFError):
        turn.send("it runs")
        turn.recv()
{turns}'''

TURNS = """\
        for found in steps(*given):
            turn.send(found)
            turn.recv()
"""

TURNS_AND_LEAVE = """\
        global running  # what it holds, it holds until the process has ended
        running = steps(*given)
        for found in running:
            turn.send(found)
            if turn.recv() == "leave":
                return
"""

IN_ONE = """
    def go_on(self):
        self.turn.send("it is your turn")
        if not self.turn.poll(TIMEOUT):
            raise TimeoutError
        return self.turn.recv()
"""

IN_TWO = """
    def go_on(self):
        self.tell()
        return self.wait()

    def tell(self):
        self.turn.send("it is your turn")

    def wait(self):
        if not self.turn.poll(TIMEOUT):
            raise TimeoutError
        return self.turn.recv()
"""

SEGMENTS = '''
def segments():
    """Return how many segments there are that these processes made."""
    ours = PATTERN.replace("{pid}", f"({'|'.join(map(str, PIDS))})")
    return sum(bool(re.match(ours, name)) for name in os.listdir("/dev/shm"))
'''

DESCRIPTORS = '''
def descriptors(pid):
    """Return how many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))
'''

MAPPINGS = '''
def mappings(pid):
    """Return how many mappings of shared memory a process has."""
    with open(f"/proc/{pid}/maps") as file:
        return sum("/dev/shm/" in line or "/memfd:" in line for line in file)
'''

GROWN = '''
def grown(held, before):
    """Return by how much there is more than before, when GRACE seconds have passed."""
    deadline = time.monotonic() + GRACE
    while (now := held()) != before and time.monotonic() < deadline:
        time.sleep(0.1)
    return {what: now[what] - before[what] for what in now if now[what] > before[what]}
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

READINGS = {"segments": SEGMENTS, "descriptors": DESCRIPTORS, "mappings": MAPPINGS}
"""What reads of the ledger become."""
