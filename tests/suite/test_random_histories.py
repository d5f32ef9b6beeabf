"""Random histories on an implementation in memory: the model is judged.

No history fails on one that shares as it has to; on one with a fault, a history does,
and says which clause is broken.
"""

from __future__ import annotations

import inspect
import itertools
from collections import Counter, deque
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest
from shared_world import (
    IMPLEMENTATION,
    Channel,
    Process,
    Segment,
    Stage,
    Tensor,
    raised,
)
from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.chapters import test_histories
from sharedtensor_conformance.chapters.history_model import ChannelModel, HistoryModel
from sharedtensor_conformance.chapters.history_search import (
    HistoryFailed,
    draw_history,
)
from sharedtensor_conformance.chapters.history_steps import (
    Steps,
    all_kinds,
    profile_of,
)
from sharedtensor_conformance.chapters.random_histories import (
    FAMILIES,
    AliasingHistory,
    AliasingRunner,
    LifetimeHistory,
    kinds_for,
)
from sharedtensor_conformance.chapters.state_machines import (
    MACHINES,
    ImpossibleTransition,
)
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.harness.case.marking import marking_of
from sharedtensor_conformance.harness.case.outcomes import (
    ActorDied,
    CheckFailed,
    DeadlineExceeded,
    HarnessFault,
)
from sharedtensor_conformance.harness.stage.timeouts import (
    SHORT_ANSWER_TIMEOUT,
    Timeouts,
)
from sharedtensor_conformance.plugin.execution import Outcome
from sharedtensor_conformance.report.records import Case
from sharedtensor_conformance.report.verdicts import Verdict

ALIASING = ("aliasing", "grads")
WITH_DEATHS = [family for family in FAMILIES if family not in ALIASING]
REAL = {"many", "sizes", "program", "kill_manager"}
"""Steps that need a real process."""

OF_PAIRS = {"send", "view", "clone", "set_grad", "clear_grad", "take_grad"}
"""Steps that the families about aliasing have alone."""

KINDS = sorted(set(all_kinds()) - REAL - OF_PAIRS - {"ending"})
PLACES = [("file_system", "fork"), ("file_descriptor", "spawn")]


def history(seed, kinds=KINDS):
    """Return a random history, the same for a seed."""
    rng = Random(seed)
    drawn = rng.choices(kinds, k=rng.randrange(10, 40))
    return [(kind, rng.getrandbits(32)) for kind in (*drawn, "ending")]


def run(history, stage, kinds=KINDS):
    LifetimeHistory(stage, kinds).run(history)


# Aliasing


def run_aliasing(history, stage=Stage):
    place = stage("file_descriptor", "spawn").with_peers()
    AliasingHistory(place, FAMILIES["grads"]).run(history)


def failed_aliasing(stage):
    """Return how a history first fails there."""
    for seed in range(100):
        try:
            run_aliasing(draw_history(FAMILIES["grads"], Random(seed)), stage)
        except HistoryFailed as failed:
            return failed
    pytest.fail("no history fails")


class Copies(Stage):
    """What arrives is a copy."""

    def unpacked(self, actor, message):
        for part in message["in"]:
            part.segment = Segment(list(part.segment.numbers))
        return super().unpacked(actor, message)


class MixesUpGrads(Stage):
    def unpacked(self, actor, message):
        whole = super().unpacked(actor, message)
        for tensor in whole["tensors"]:
            tensor.set_grad(tensor.own_grad and tensor)
        return whole


class Loses(Process):
    def get(self, sender, channel):
        arrived = super().get(sender, channel)
        return arrived if isinstance(arrived, list) else None


class LosesTheSecond(Process):
    def get(self, sender, channel):
        arrived = super().get(sender, channel)
        return arrived[:1] if isinstance(arrived, list) else arrived


def with_process(kind):
    return type(kind.__name__, (Stage,), {"process": kind})


def with_channel(kind):
    return type(kind.__name__, (Stage,), {"channel": kind})


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (Copies, "at the end of this: got"),
        (MixesUpGrads, "at the end of this: got"),
        (with_process(Loses), "is a tensor"),
        (with_process(LosesTheSecond), "has 2 tensors"),
    ],
)
def test_fault_of_the_implementation_fails_a_history_about_aliasing(stage, said):
    outcome = failed_aliasing(stage).as_outcome("this history")
    assert type(outcome) is CheckFailed
    assert said in str(outcome)
    assert "SHARE-12" in outcome.clauses
    assert ".make([1, 2" in str(outcome)


def test_after_a_wrong_value_the_processes_go_on_without_what_they_had():
    stage = Copies("file_descriptor", "spawn").with_peers()
    kinds = ["make", "put", "put", "send", "write"]
    runner = AliasingRunner(stage, kinds)
    histories = [draw_history(kinds, Random(seed)) for seed in range(20)]
    assert [*filter(None, map(runner.run, histories))]
    assert runner.used is stage
    assert not any(stage.pairs.values())
    assert not any(process.tensors for process in stage.processes)


class FailingStage(Stage):
    """A stage on which every operation fails with the same error."""

    def __init__(self, error, others):
        super().__init__("file_descriptor", "spawn")
        self.with_peers()
        self.error, self.others = error, others
        self.timeouts = Timeouts(answer=20.0, start=90.0, cleanup=3.0)
        for process in self.processes:
            process.make = self.fail

    def fail(self, values):
        raise self.error

    @contextmanager
    def fresh(self):
        self.others.append(FailingStage(self.error, self.others))
        yield self.others[-1]


@pytest.mark.parametrize(
    ("error", "waited"),
    [
        (DeadlineExceeded("no answer"), SHORT_ANSWER_TIMEOUT),
        (ActorDied("of SIGSEGV"), 20.0),
    ],
)
def test_after_a_hang_the_search_waits_less_for_answers(error, waited):
    used = []
    runner = AliasingRunner(FailingStage(error, used), ["make"])
    assert runner.run([("make", 0)])
    assert [stage.timeouts.answer for stage in used] == [waited]


# Deaths


class LosesWhatItMay(Stage):
    """What was put by a process that ended abruptly is lost with it."""

    def ended(self, process, abruptly=False):
        for channel in self.channels if abruptly else ():
            kept = [one for one in channel.messages if one["by"] is not process]
            channel.messages = deque(kept)
        super().ended(process, abruptly)


class OneFileForAMessage(Stage):
    """What is first shared by one message has one file in common."""

    def packed(self, actor, payload):
        new = [t.segment for t in payload["tensors"] if not t.segment.is_shared]
        message = super().packed(actor, payload)
        for segment in new:
            segment.file = id(new[0])
        return message

    def segments(self):
        named = [one for one in self.referred() if one.named]
        return sorted({hex(getattr(one, "file", id(one))) for one in named})


@pytest.mark.takes(15)
def test_no_history_fails_where_all_is_right_and_every_transition_is_used():
    """A transition that no history takes would be a claim that nothing judges."""
    used = set()
    stages = itertools.product([Stage, LosesWhatItMay, OneFileForAMessage], PLACES)
    for seed, (stage, place) in enumerate(
        itertools.islice(itertools.cycle(stages), 250)
    ):
        lifetimes = LifetimeHistory(stage(*place), KINDS)
        lifetimes.run(history(seed))
        used |= set(lifetimes.model.transitions)
    every = {(m.name, one.state, one.event) for m in MACHINES for one in m.transitions}
    assert {one for one in every - used if not needs_a_real_process(*one)} == set()


def needs_a_real_process(_, state, event):
    return "manager" in event or "program" in event or state == "unwatched"


class SharesAtOnce(Process):
    """What it makes is shared from the start, at its user's request."""

    def make(self, values):
        tensor = super().make(values)
        self.move(tensor.segment)
        return tensor


def test_no_history_fails_where_every_tensor_is_shared_from_the_start():
    """A forked child shares what it inherits then."""
    declared = replace(IMPLEMENTATION, private=False)
    for seed in range(50):
        stage = with_process(SharesAtOnce)(*PLACES[seed % 2])
        stage.implementation = declared
        run(history(seed), stage)


# Faults of the implementation, and who finds them


class LosesWhatItsSenderDropped(Stage):
    """A message refers to the tensor of its sender, which may be gone."""

    def unpacked(self, actor, message):
        held = {id(tensor.segment) for p in self.processes for tensor in p.tensors}
        if any(id(part.segment) not in held for part in message["in"]):
            raise raised("the segment has gone")
        return super().unpacked(actor, message)


class LosesWhatAnExitedSenderPut(Stage):
    """A message is lost with its sender, however that ended."""

    def unpacked(self, actor, message):
        if message["by"] not in self.processes:
            raise raised("the sender has gone")
        return super().unpacked(actor, message)


class ClearsAtADeath(Stage):
    """The death of a process takes its last tensor's memory along."""

    def ended(self, process, abruptly=False):
        if process.tensors and process is not self.owner:
            numbers = process.tensors[-1].segment.numbers
            numbers[:] = [0] * len(numbers)
        super().ended(process, abruptly)


class KeepsNames(Stage):
    """The names of a process that ended stay."""

    def __init__(self, *place):
        self.kept = []
        super().__init__(*place)

    def ended(self, process, abruptly=False):
        self.kept += [hex(id(t)) for t in process.tensors if t.segment.named]
        super().ended(process, abruptly)

    def segments(self):
        return [*super().segments(), *self.kept]


class PutsTwiceAfterAFork(Stage):
    """What waits at a fork is put again by the child when it ends."""

    def began(self, parent, child):
        child.waiting = [list(c.messages) for c in self.channels]

    def ended(self, process, abruptly=False):
        for channel, messages in zip(
            self.channels, getattr(process, "waiting", []), strict=False
        ):
            channel.messages.extend(messages)
        super().ended(process, abruptly)


class SharesPrivateArguments(Process):
    """A private tensor among the arguments of a forked child is shared with it."""

    def give(self, tensor, child):
        if self.stage.configuration.start_method != "fork":
            return super().give(tensor, child)
        return Tensor(child, tensor.segment)


class CopiesArguments(Process):
    """A tensor among the arguments of a spawned child is a copy."""

    def give(self, tensor, child):
        return Tensor(child, Segment(tensor.values()))


class LastFirst(Channel):
    """Of two messages the later one is received first."""

    def take(self):
        return self.messages.pop()


class LosesBytes(Channel):
    """A message of more bytes than a pipe holds is cut."""

    def take(self):
        message = super().take()
        return message | {"size": message["size"] and min(message["size"], 1 << 16)}


class TakesTooMany(Channel):
    """A queue takes one message more than its bound."""

    def is_full(self):
        return bool(self.bound) and len(self.messages) > self.bound


class WakesOne(Channel):
    """When all tasks are done, one of those who wait for that comes back."""

    def wake(self):
        self.joins.pop(0).found = [None]


class JoinsTooEarly(Channel):
    """A join returns when all messages have been received."""

    def get(self, actor):
        message = super().get(actor)
        if not self.messages:
            self.wake()
        return message


class RaceLoserWaits(Process):
    """Of two that wait with a timeout, who gets nothing waits for ever."""

    def start(self, function, channel, seconds):
        pending = super().start(function, channel, seconds)
        pending.otherwise = None
        return pending


FAULTS = {
    Copies: {"SHARE-12", "SHARE-1", "SHARE-2"},
    LosesWhatItsSenderDropped: {"LIFE-2", "LIFE-15", "LIFE-5", "CHAN-4"},
    LosesWhatAnExitedSenderPut: {"LIFE-5"},
    ClearsAtADeath: {"LIFE-3", "LIFE-4", "LIFE-20", "LIFE-11"},
    KeepsNames: {"FS-2", "FS-9", "MGR-10", "LIFE-7", "LIFE-8", "LIFE-20"},
    PutsTwiceAfterAFork: {"LIFE-15", "CHAN-4"},
    with_process(SharesPrivateArguments): {"START-4", "SHARE-12"},
    with_process(CopiesArguments): {"START-2", "START-3", "LIFE-22", "SHARE-1"},
    with_channel(LastFirst): {"CHAN-4"},
    with_channel(LosesBytes): {"CHAN-6"},
    with_channel(TakesTooMany): {"CHAN-4"},
    with_channel(WakesOne): {"CHAN-8"},
    with_channel(JoinsTooEarly): {"CHAN-8"},
    with_process(RaceLoserWaits): {"CHAN-12"},
}


def found_in(stage):
    """Return how a history first fails there."""
    strategy = "file_system" if stage is KeepsNames else "file_descriptor"
    for seed in range(1000):
        for method in ("fork", "spawn"):
            try:
                run(history(seed), stage(strategy, method))
            except HistoryFailed as failed:
                return failed
    pytest.fail("no history fails")


@pytest.mark.parametrize("fault", FAULTS, ids=[one.__name__ for one in FAULTS])
def test_fault_of_the_implementation_is_found_and_its_clause_is_named(fault):
    failed = found_in(fault)
    outcome = failed.as_outcome("this history")
    assert not isinstance(outcome, HarnessFault), outcome
    assert set(outcome.clauses) & FAULTS[fault], outcome
    assert "owner.open_channel" in str(outcome)


class LeavesANameAtTheEnd(Stage):
    """A name is left of the process that ends last."""

    def segments(self):
        return [*super().segments(), *([] if self.processes else ["left"])]


TESTS_OF_FAMILIES: dict[str, Callable[..., None]] = {}
for _, function in inspect.getmembers(test_histories, inspect.isfunction):
    if "histories" in inspect.signature(function).parameters:
        function(lambda family, test=function: TESTS_OF_FAMILIES.update({family: test}))

ABOUT_THE_END = {"LIFE-7", "LIFE-9", "LIFE-10", "LIFE-14"}


@pytest.mark.parametrize("family", WITH_DEATHS)
def test_what_is_left_at_the_end_breaks_a_clause_about_ends(family):
    """Whatever the test of the family is about, and though all sequences are."""
    kinds = [one for one in kinds_for(IMPLEMENTATION, family) if one not in REAL]
    kinds.append("start")  # else resources are compared, which these have not
    cited = marking_of(TESTS_OF_FAMILIES[family]).clauses
    found = set()
    for seed in range(25):
        try:
            steps = draw_history(kinds, Random(seed))
            run(steps, LeavesANameAtTheEnd("file_system", "fork"), kinds)
        except HistoryFailed as failed:
            case = Case(id="a[b]", test="a", clauses=cited, verdict=Verdict.PASS)
            outcome = Outcome.of_error(failed.as_outcome("this history"))
            assert outcome.verdict is Verdict.FAIL
            found |= {*outcome.on(case).clauses}
    assert found
    assert found <= ABOUT_THE_END


def test_what_ended_processes_leave_is_judged_where_lifetime_is_claimed():
    """LIFE-9, LIFE-10 and LIFE-14 bind nobody who claims `core` alone."""
    declared = replace(IMPLEMENTATION, claims=frozenset({"core"}))
    kinds = ["make", "put", "get", "write", "drop", "start"]
    for seed in range(100):
        stage = KeepsNames("file_system", "fork")
        stage.implementation = declared
        run(history(seed, kinds), stage, kinds)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ZeroDivisionError("by zero"), HarnessFault),
        (TypeError("'NoneType' object is not iterable"), HarnessFault),
        (HarnessFault("owner has no object"), HarnessFault),
        (raised("no room"), CheckFailed),
        (ActorDied("owner died of SIGSEGV"), ActorDied),
        (DeadlineExceeded("owner gave no answer"), DeadlineExceeded),
    ],
)
def test_error_leads_to_the_verdict_of_who_made_it(error, kind):
    class Fails(Process):
        def make(self, values):
            raise error

    with pytest.raises(HistoryFailed) as caught:
        run([("make", 0)], with_process(Fails)("file_system", "fork"))
    outcome = caught.value.as_outcome("this history")
    assert type(outcome) is kind
    assert str(error) in str(outcome)
    assert getattr(outcome, "clauses", ("SHARE-12",)) == ("SHARE-12",)


# The script


@pytest.mark.parametrize("has_manager", [True, False])
def test_script_names_the_check_of_resources_where_it_is_made(has_manager):
    stage = Stage("file_descriptor", "fork")
    lifetimes = LifetimeHistory(stage, KINDS)
    lifetimes.start()
    lifetimes.resources_before = {lifetimes.owner: stage.holdings(stage.owner)}
    if not has_manager:
        lifetimes.model.record_manager_kill()
    lifetimes.drop_all()
    assert ("owner has what it had" in lifetimes.lines) == has_manager


# What is drawn


@pytest.mark.parametrize("family", WITH_DEATHS)
def test_most_messages_of_a_history_have_tensors_and_many_of_them_new_ones(family):
    """A history that sends nothing finds nothing."""
    left_out = REAL | {"pile"}  # which puts many messages without tensors at once
    kinds = [k for k in kinds_for(IMPLEMENTATION, family) if k not in left_out]
    sent = []

    class Counting(Stage):
        def packed(self, actor, payload):
            sent.append([one.segment.is_shared for one in payload["tensors"]])
            return super().packed(actor, payload)

    rng = Random(1)
    for _ in range(50):
        run(draw_history(kinds, rng), Counting("file_system", "fork"))
    assert len(sent) > 50
    assert sum(bool(tensors) for tensors in sent) > len(sent) / 2
    assert sum(not all(tensors) for tensors in sent) > len(sent) / 4


# The machines


@pytest.mark.parametrize("machine", MACHINES, ids=[one.name for one in MACHINES])
class TestMachine:
    def test_transitions_lead_from_states_to_states_by_clauses_that_there_are(
        self, machine
    ):
        clauses = load_clauses()
        for one in machine.transitions:
            assert {one.state, one.next} <= set(machine.states)
            assert one.clauses
            assert set(one.clauses) <= set(clauses)

    def test_event_has_one_meaning_in_a_state(self, machine):
        pairs = Counter((one.state, one.event) for one in machine.transitions)
        assert set(pairs.values()) == {1}

    def test_every_state_is_reached(self, machine):
        reached = {machine.first}
        for _ in machine.states:
            reached |= {t.next for t in machine.transitions if t.state in reached}
        assert reached == set(machine.states)

    def test_what_is_not_in_the_table_cannot_happen(self, machine):
        with pytest.raises(ImpossibleTransition, match="cannot happen"):
            machine.after(machine.first, "something else")


@pytest.mark.parametrize("family", FAMILIES)
def test_kinds_are_those_whose_profiles_are_claimed(family):
    poor = Implementation(
        name="poor", operations="", claims=frozenset({"core", "lifetime"})
    )
    kinds = kinds_for(poor, family)
    assert {profile_of(kind) for kind in kinds} <= {"core", "lifetime"}
    assert "strategy" not in kinds


# What the model says of what may be lost


def test_message_of_a_killed_sender_may_be_missing_and_others_may_not():
    model = HistoryModel("file_system")
    one, other = model.record_start("one"), model.record_start("other")
    channel = ChannelModel("queue")
    model.channels.append(channel)
    lost = model.record_put([model.record_make(one, [1])], one, channel)
    certain = model.record_put([], other, channel)
    model.record_end(one, "killed")
    assert channel.receivable() == [lost, certain]
    assert model.name_range() == (0, 1)
    model.record_receive(channel, certain)
    assert channel.uncertain == [lost]
    assert not channel.certain
    model.record_loss(channel, lost)
    assert model.name_range() == (0, 0)


def test_second_message_of_a_sender_waits_for_the_first_that_is_certain():
    model = HistoryModel("file_descriptor")
    one = model.record_start("one")
    channel = ChannelModel("queue")
    model.channels.append(channel)
    first, second = (model.record_put([], one, channel) for _ in range(2))
    assert channel.receivable() == [first]
    model.record_receive(channel, first)
    assert channel.receivable() == [second]


# The order of answers


class Recording(Steps):
    """Notes what arrives, in order."""

    def __init__(self):
        super().__init__(Stage("file_descriptor", "fork"), [])
        self.seen = []

    def check_received(self, process, channel, payload):
        self.seen.append((process.name, payload["number"]))


def test_order_in_which_readers_tell_of_their_messages_is_open():
    """The reader that is asked first has the later message."""
    steps, pending = Recording(), {}
    for name, number in (("owner", 11), ("child", 9)):
        reader = steps.model.record_start(name)
        reader.apply("waits for a message")
        answer = {"number": number}
        pending[reader] = SimpleNamespace(
            answer=lambda answer=answer: answer, has_answered=lambda: True
        )
    steps.check_untimed_readers(None, pending)
    assert steps.seen == [("child", 9), ("owner", 11)]
    assert steps.lines == ["    child gets #9", "    owner gets #11"]
