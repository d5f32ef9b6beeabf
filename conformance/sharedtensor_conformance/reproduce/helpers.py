"""The source of helper functions that generated programs use."""

from __future__ import annotations

PEER = '''
class Peer:
    """A process whose steps are a generator: each `yield` ends a turn of it."""

    def __init__(self, steps, *given):
        self.turns, theirs = Pipe()
        self.process = context.Process(target=run, args=(theirs, steps, *given))
        self.process.daemon = {daemon}
        self.process.start()
{noted}        theirs.close()
        self.turns.recv()  # it runs
{methods}

def run(turns, steps, *given):
{begin}{turns}'''

RECORD_PID = "        PIDS.append(self.process.pid)\n"

TURNS = """\
    with suppress(EOFError):  # until the process that started it has ended
        turns.send("it runs")
        turns.recv()
        for found in steps(*given):
            turns.send(found)
            turns.recv()
"""

TURNS_AND_LEAVE = """\
    global running  # so that its objects live until the process ends
    running = steps(*given)
    with suppress(EOFError):  # until the process that started it has ended
        turns.send("it runs")
        turns.recv()
        for found in running:
            turns.send(found)
            if turns.recv() == "leave":
                return
"""

GO_ON = """
    def go_on(self):
        self.turns.send("go on")
        if not self.turns.poll(TIMEOUT):
            raise TimeoutError
        return self.turns.recv()
"""

TELL_AND_WAIT = """
    def go_on(self):
        self.tell()
        return self.wait()

    def tell(self):
        self.turns.send("go on")

    def wait(self):
        if not self.turns.poll(TIMEOUT):
            raise TimeoutError
        return self.turns.recv()
"""

UNTIL_IT_WAITS = '''
def until_it_waits(process):
    """Return when a process is waiting: it sleeps and is not woken any more."""
    deadline, before, same = time.monotonic() + TIMEOUT, [], 0
    while same < 10:
        with open(f"/proc/{process.pid}/status") as file:
            now = [line for line in file if line.startswith(("State", "voluntary"))]
        same = same + 1 if now == before and "S (sleeping)" in now[0] else 0
        before = now
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)
'''

SEGMENTS = '''
def segments():
    """Return the number of existing segments of these processes."""
    ours = PATTERN.replace("{pid}", f"({'|'.join(map(str, PIDS))})")
    return sum(bool(re.match(ours, name)) for name in os.listdir("/dev/shm"))
'''

MAPPINGS = '''
def mappings(pid):
    """Return the number of shared memory mappings of a process."""
    with open(f"/proc/{pid}/maps") as file:
        return sum("/dev/shm/" in line or "/memfd:" in line for line in file)
'''

DESCRIPTORS_TAKEN = '''
def take_descriptors(spare):
    """Open descriptors until only `spare` more are permitted."""
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    with suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    for descriptor in taken[len(taken) - spare :]:
        os.close(descriptor)
    return taken[: len(taken) - spare]
'''

TOO_LATE = '''
def too_late(number, frame):
    """Interrupt a call that does not return."""
    raise TimeoutError
'''

UNPICKLABLE = '''
class Unpicklable:
    """An object that raises when it is pickled."""

    def __reduce__(self):
        raise ValueError("this object cannot be pickled")
'''

UNRECEIVABLE = '''
class OwnError(Exception):
    """An exception that no library knows."""


class Unreceivable:
    """An object that raises an exception when it is unpickled."""

    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        return refuse_to_arrive, (self.error,)


def refuse_to_arrive(error):
    raise error("this object cannot be unpickled")
'''

CYCLE = '''
class Cycle:
    """An object that refers to itself, and to another."""

    def __init__(self, held):
        self.held, self.itself = held, self
'''

BY_NAME = {
    "segments": SEGMENTS,
    "mappings": MAPPINGS,
    "waits": UNTIL_IT_WAITS,
    "descriptors taken": DESCRIPTORS_TAKEN,
    "too late": TOO_LATE,
    "unpicklable": UNPICKLABLE,
    "unreceivable": UNRECEIVABLE,
    "cycle": CYCLE,
}
"""The helpers by name. A program contains those that its steps need."""
