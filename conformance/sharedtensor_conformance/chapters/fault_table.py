"""The fault table: which fault can strike which role at which step of the protocol.

In a round of the protocol the owner shares a tensor and sends it, the peer receives it,
the owner drops it, and the peer drops it. A bystander takes no part, but shares another
tensor with both. `STEPS` are the steps of a round, in order.

Each combination of a step, a role and a fault is either a `Cell`, which a test runs, or
it cannot be run. `reason_against` gives the reason. This module only describes the
table; `fault_round` runs a cell.
"""

from __future__ import annotations

from dataclasses import dataclass

from sharedtensor_conformance.adapter import Implementation

OWNER, PEER, BYSTANDER, MANAGER = "owner", "peer", "bystander", "manager"

ROLES = {
    OWNER: "makes, shares and sends the tensor",
    PEER: "receives the tensor and is the last to drop it",
    BYSTANDER: "takes no part in the round; shares another tensor with both",
    MANAGER: "removes names, where the strategy has any",
}


@dataclass(frozen=True)
class Step:
    """One step of a round.

    Args:
        name: the name of the step, also in trace points.
        does: what happens in the step, as its actor sees it.
        actor: the role that performs the step.
        operation: the operation of the round that contains the step.
        after: whether a fault from outside strikes after the operation, not before it.
        managed: whether the step exists only if a manager removes the names.
    """

    name: str
    description: str
    actor: str
    operation: str
    strike_after: bool = False
    managed: bool = False


STEPS = (
    Step("share", "the storage is moved into a segment", OWNER, "share"),
    Step("register", "the manager is told of the name", OWNER, "share", managed=True),
    Step("export", "the handle is made", OWNER, "put"),
    Step("announce", "the manager is told that a message with the name will leave",
         OWNER, "put", managed=True),
    Step("send", "the message is written", OWNER, "put", strike_after=True),
    Step("receive", "the message is read", PEER, "get"),
    Step("acknowledge", "the manager is told that the receiver holds the name",
         PEER, "get", managed=True),
    Step("map", "the segment is mapped", PEER, "get", strike_after=True),
    Step("release", "the sender gives up the storage", OWNER, "drop"),
    Step("last-release", "the last holder gives up the storage", PEER, "last-drop"),
    Step("unlink", "the manager removes the name", MANAGER, "last-drop", managed=True),
)  # fmt: skip

ENDS = {
    "exit": "the process exits normally",
    "SIGTERM": "the process gets SIGTERM, and ends unless it handles it",
    "SIGKILL": "the process is killed",
}
SHORTAGES = {
    "descriptors": "no further descriptor can be opened (RLIMIT_NOFILE)",
    "memory": "the address space cannot grow (RLIMIT_AS)",
}
FAULTS = ENDS | {
    "exception": "an exception is raised in the step, as by a signal handler",
    "SIGSTOP": "the process is stopped; it goes on when the others have shared anew",
    **SHORTAGES,
    "duplicate": "the step is performed twice",
    "drop": "the step is not performed; the call returns as if it were",
}

RESOURCES_OF = {
    "share": (OWNER, MANAGER),
    "register": (OWNER, MANAGER),
    "export": (OWNER,),
    "announce": (OWNER, MANAGER),
    "send": (OWNER,),
    "receive": (PEER, OWNER),
    "acknowledge": (PEER, MANAGER),
    "map": (PEER, OWNER),
    "release": (OWNER, MANAGER),
    "last-release": (PEER, MANAGER),
    "unlink": (MANAGER,),
}
"""The roles that need descriptors or memory in each step, in some implementation."""

REPEATABLE = ("send", "release", "last-release")


@dataclass(frozen=True)
class Cell:
    """One cell of the table that can be run."""

    step: Step
    role: str
    fault: str

    @property
    def name(self) -> str:
        """The name of the cell in the ids of cases."""
        return f"{self.step.name}-{self.role}-{self.fault}"

    @property
    def managed(self) -> bool:
        """Whether the cell exists only if there is a manager."""
        return self.step.managed or self.role == MANAGER

    @property
    def clause(self) -> str:
        """The clause that the cell judges."""
        return clause_of(self.role, self.fault)

    @property
    def strikes_actor(self) -> bool:
        """Whether the fault strikes the process that performs the step."""
        return self.role == self.step.actor


def clause_of(role: str, fault: str) -> str:
    """Return the clause that is judged when `fault` strikes `role`."""
    if role == MANAGER:
        return "FAULT-5"
    if fault in ENDS:
        return "FAULT-1"
    if fault == "SIGSTOP":
        return "FAULT-3"
    return "FAULT-4" if fault in SHORTAGES else "FAULT-2"


def reason_against(step: Step, role: str, fault: str) -> str:
    """Return why a cell cannot be run, without a full stop; ``""`` if it can."""
    acts = role == step.actor
    match fault:
        case "exit" if role == MANAGER:
            return "a manager exits by itself only when nobody uses it: see MGR-3"
        case "exception" if not acts:
            return "an exception is raised in the process that performs the step"
        case "exception" if role == MANAGER:
            return "what a manager does not catch ends it: see SIGTERM and SIGKILL"
        case "exception" if step.name.endswith("release"):
            return "a release runs in a finalizer, out of which no exception comes"
        case "SIGSTOP" if step.name == "unlink" and role == MANAGER:
            return "the manager is held at this step by SIGSTOP in its whole row"
        case "descriptors" | "memory" if role not in RESOURCES_OF[step.name]:
            return "this role takes neither descriptors nor memory in this step"
        case "duplicate" | "drop":
            return _reason_against_repetition(step, role, fault)
    return ""


def _reason_against_repetition(step: Step, role: str, fault: str) -> str:
    if role != step.actor:
        return "only who performs a step can repeat it or leave it out"
    if step.name in ("register", "announce", "acknowledge"):
        return "the kernel neither repeats nor loses what is sent on a connected socket"
    if fault == "drop" and step.name != "send":
        return "only a message can get lost; a call is made, or it fails: see exception"
    if fault == "duplicate" and step.name not in REPEATABLE:
        return "nothing repeats a call that has returned; a repeated message is at send"
    return ""


def can_be_held(implementation: Implementation, step: Step) -> bool:
    """Return whether the trace points of an implementation include a step."""
    if "trace-points" not in implementation.claims:
        return False
    return not implementation.trace_steps or step.name in implementation.trace_steps


def cells() -> list[Cell]:
    """Return all cells that can be run, in the order of the table."""
    return [
        Cell(step, role, fault)
        for step in STEPS
        for role in ROLES
        for fault in FAULTS
        if not reason_against(step, role, fault)
    ]


def cells_of(clause: str, *, managed: bool) -> list[Cell]:
    """Return the cells that judge a clause: all that are `managed`, or all others."""
    found = [cell for cell in cells() if cell.clause == clause]
    return [cell for cell in found if cell.managed == managed]
