"""Every interleaving of a small program, and a kill at each step.

A state is known by its hash, so what follows from it is looked at once. States cannot
be copied: each branch is run again from the start. Branches with few preemptions come
first, where a process is interrupted that could go on: most faults need one or two
(Musuvathi and Qadeer, Iterative context bounding, PLDI 2007).
"""

from __future__ import annotations

import heapq
import random
import re
import threading
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field

Choice = tuple[str, str]
"""What happens next, as ``step`` or ``kill``, and the name of a process."""


SEED = 0
"""Of the order of branches with equally many preemptions."""


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass
class Found:
    """What a search has come to."""

    scenario: str
    states: int = 0
    steps: int = 0
    runs: int = 0
    deepest: int = 0
    seconds: float = 0.0
    is_complete: bool = False
    violation: str = ""
    path: list[Choice] = field(default_factory=list)


class Branches:
    """What is left to look at: paths, those with the fewest preemptions first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, list[Choice]]] = []
        self._chance = random.Random(SEED)

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, preemptions: int, path: list[Choice]) -> None:
        """Add a path; the order among equals is random, and always the same."""
        heapq.heappush(self._heap, (preemptions, self._chance.random(), path))

    def pop(self) -> tuple[int, list[Choice]]:
        """Return the next path and its preemptions."""
        preemptions, _, path = heapq.heappop(self._heap)
        return preemptions, path


class Killed(BaseException):
    """Ends the thread of a process that was killed."""


def at_once() -> bool:
    """Return that a step need not wait."""
    return True


_of_thread = threading.local()


def current_process() -> Process | None:
    """Return the process of the current thread; None in that of the search."""
    return getattr(_of_thread, "process", None)


class Process:
    """A process of a program: a thread that stops before each step.

    Its thread and that of the search never run at once. `can_step`, `step` and `kill`
    run in that of the search, all else in its own.

    Attributes:
        label: its next step; `ready` says whether that can be taken.
        history: what it has done and observed. It is deterministic, so equal histories
            mean equal states.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.label, self.ready = "starts", at_once
        self.history: object = name
        self.is_over = self.was_killed = False
        self._turn, self._returned = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def work(self) -> None:
        """Do what the process is for."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """Note an exception of the work."""
        raise NotImplementedError

    def end(self) -> None:
        """Give back what the process has at its end."""

    def can_step(self) -> bool:
        """Return whether the process can do its next step."""
        return not self.is_over and bool(self.ready())

    def step(self) -> None:
        """Do one step, and continue to the next point."""
        self.history = hash((self.history, self.label))
        self._resume()

    def kill(self) -> None:
        """Kill the process where it waits. What its thread does later has no effect."""
        self.was_killed = True
        self._resume()

    def _resume(self) -> None:
        self._turn.release()
        self._returned.acquire()

    def _run(self) -> None:
        _of_thread.process = self
        self._turn.acquire()
        try:
            if not self.was_killed:
                self.work()
        except (Killed, Violation):
            pass
        except Exception as error:
            self.fail(error)
        finally:
            self.is_over = True
            self.end()
            self._returned.release()

    def point(self, label: str, ready: Callable[[], object] = at_once) -> None:
        """Let other processes run before the next step of this one.

        Raises Killed if it is killed there, or was before.
        """
        if not self.was_killed:
            self.label, self.ready = label, ready
            self._returned.release()
            self._turn.acquire()
        if self.was_killed:
            raise Killed

    def observe(self, observed: object) -> None:
        """Add the result of a step to the history."""
        self.history = hash((self.history, observed))


class Machine:
    """Processes that a search takes step by step."""

    def __init__(self) -> None:
        self.processes: dict[str, Process] = {}
        self.steps = 0
        self.violation = ""

    def may_die(self, process: Process) -> bool:
        """Return whether a process that runs may be killed now."""
        raise NotImplementedError

    def key(self) -> int:
        """Return what identifies the state."""
        raise NotImplementedError

    def verify_end(self) -> None:
        """Raise Violation where nothing but a kill can happen, and should."""
        raise NotImplementedError

    def choices(self) -> list[Choice]:
        """Return what can happen next."""
        alive = [each for each in self.processes.values() if not each.is_over]
        steps = [("step", each.name) for each in alive if each.can_step()]
        return steps + [("kill", each.name) for each in alive if self.may_die(each)]

    def take(self, choice: Choice) -> None:
        """Let a process do a step, or kill it; raises Violation."""
        what, name = choice
        self.steps += 1
        getattr(self.processes[name], what)()
        if self.violation:
            raise Violation(self.violation)

    def close(self) -> None:
        """Kill the processes that still run, and wait for all threads."""
        for process in self.processes.values():
            if not process.is_over:
                process.kill()
            process.thread.join()


def search(start: Callable[[], Machine], name: str, most_states: int) -> Found:
    """Look at all states, or stop at a violation or at `most_states`."""
    found = Found(name)
    began = time.perf_counter()
    seen: set[int] = set()
    branches = Branches()
    branches.add(0, [])
    while branches and len(seen) < most_states and not found.violation:
        _follow(start(), branches, seen, found)
    found.states = len(seen)
    found.is_complete = not branches and not found.violation
    found.seconds = time.perf_counter() - began
    return found


def _follow(machine: Machine, branches: Branches, seen: set[int], found: Found) -> None:
    """Take the next branch again and go on from its end until a state is known."""
    preemptions, path = branches.pop()
    found.runs += 1
    try:
        for choice in path:
            machine.take(choice)
        while (key := machine.key()) not in seen:
            seen.add(key)
            choices = _ordered(machine.choices(), path)
            if all(what == "kill" for what, _ in choices):
                machine.verify_end()
            if not choices:
                break
            goes_on = choices[0] == path[-1] if path else False
            for choice in choices[1:]:
                interrupts = goes_on and choice[0] == "step"
                branches.add(preemptions + interrupts, [*path, choice])
            path = [*path, choices[0]]
            machine.take(choices[0])
    except Violation as violation:
        found.violation, found.path = str(violation), path
    finally:
        found.steps += machine.steps
        found.deepest = max(found.deepest, len(path))
        machine.close()


def _ordered(choices: list[Choice], path: list[Choice]) -> list[Choice]:
    """Return the choices, first the step of the process that has done the last one."""
    return sorted(
        choices, key=lambda choice: (choice[0] == "kill", choice not in path[-1:])
    )


def invariants_of(module: types.ModuleType) -> dict[str, str]:
    """Return what the text of a module says of each invariant, by its name."""
    text = module.__doc__ or ""
    found = re.findall(r"^- `(\w+)`: (.*?)(?=^-|\Z)", text, re.M | re.S)
    return {name: " ".join(said.split()) for name, said in found}


def follow(machine: Machine, path: list[Choice]) -> str:
    """Take a path again; return what was violated on it, or at its end."""
    try:
        for choice in path:
            machine.take(choice)
        if all(what == "kill" for what, _ in machine.choices()):
            machine.verify_end()
    except Violation as violation:
        return str(violation)
    finally:
        machine.close()
    return ""
