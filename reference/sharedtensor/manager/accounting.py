"""Who uses which name, and when nobody can use it any more. No I/O.

A name is unreachable when no client holds it, no pipe stands for a message with it, and
the count of messages without pipes is 0. That count is signed: an ACKNOWLEDGE_COUNTED
can be read before its ANNOUNCE_COUNTED, since two clients sent them.

This proves something only if it is of one moment: of three processes in a row, the
announcement of the first and the acknowledgement of the last add up to zero while the
REGISTER of the one in the middle is still unread. So such a name is a candidate, and it
is removed after one more full sweep over all connections without news of it: what had
been sent before that sweep began has then been read. The simulator of the tests covers
this by its invariant `no_name_goes_early`, and its mutant `removes_at_once` breaks it.
"""

from collections.abc import Iterable

Holds = dict[bytes, int]  # how often a client uses each name

SPARE_LINES = 1024  # of the journal, about names that are gone: then it is rewritten


class Usage:
    """Who uses one name; `counted` are messages in flight that have no pipe."""

    __slots__ = ("counted", "holds", "in_flight", "is_kept", "was_held")

    def __init__(self) -> None:
        self.holds = 0
        self.in_flight = 0
        self.counted = 0
        self.was_held = False
        self.is_kept = False

    def is_unreachable(self) -> bool:
        """Return whether no process holds the name and no message carries it."""
        return not (self.holds or self.in_flight or self.counted or self.is_kept)


class Names:
    """Who uses which name, and which names nobody can use any more. Clause FS-2.

    A client's multiset changes together with the counts of all, so it is passed in.

    Attributes:
        usages: what is known of each name.
        candidates: names that became unreachable in this sweep.
        confirmed: those that became so before it, with no news since.
        unwritten: names that are new, for the journal.
        lines: how many lines the journal has when these are written.
        spare_lines: how many of them may be of names that are gone.
        follows_a_killed_one: messages may have been counted by a manager that was
            killed before it had written their names down.
    """

    def __init__(self) -> None:
        self.usages: dict[bytes, Usage] = {}
        self.candidates: set[bytes] = set()
        self.confirmed: set[bytes] = set()
        self.unwritten: list[bytes] = []
        self.lines = 0
        self.spare_lines = SPARE_LINES
        self.follows_a_killed_one = False

    def usage(self, name: bytes) -> Usage:
        """Return what is known of a name."""
        found = self.usages.get(name)
        if found is None:
            found = self.usages[name] = Usage()
            self.unwritten.append(name)
            self.lines += 1
        return found

    # --- a manager that was killed

    def keep_known(self, names: Iterable[bytes]) -> None:
        """Keep to the end what a manager knew that was killed here. Clause MGR-14."""
        for name in names:
            usage = self.usages.setdefault(name, Usage())
            usage.was_held = usage.is_kept = True
            self.lines += 1

    def keep(self, name: bytes) -> None:
        """Keep a name to the end, since somebody may use it who cannot say so."""
        self.usages[name].is_kept = True
        self.update(name)

    # --- processes that hold names

    def register(self, holds: Holds, name: bytes) -> None:
        """Count one more use of a name by a client. Clauses FS-8, MGR-11."""
        holds[name] = holds.get(name, 0) + 1
        usage = self.usage(name)
        usage.holds += 1
        usage.was_held = True
        self.update(name)

    def register_again(self, holds: Holds, name: bytes) -> None:
        """Count what a killed manager had counted, and keep it. Clause MGR-14."""
        self.usage(name).is_kept = True
        self.register(holds, name)

    def release(self, holds: Holds, name: bytes) -> None:
        """Take back one use of a client, if it has one. Clause MGR-11."""
        count = holds.pop(name, 0)
        if count > 1:
            holds[name] = count - 1
        self.usage(name).holds -= bool(count)
        self.update(name)

    def release_all(self, holds: Holds) -> None:
        """Take back all uses of a client that has ended.

        Clauses LIFE-8, FS-9, MGR-10.
        """
        for name, count in holds.items():
            self.usages[name].holds -= count
            self.update(name)
        holds.clear()

    def inherited(self, holds: Holds) -> Holds:
        """Return the holds of a child whose parent has these. Clauses LIFE-22, FS-8."""
        for name, count in holds.items():
            self.usages[name].holds += count
        return dict(holds)

    # --- messages in flight

    def announce(self, names: list[bytes], has_pipe: bool) -> None:
        """Count a message with these names, or keep them if it has no pipe.

        Clause LIFE-2.
        """
        for name in names:
            usage = self.usage(name)
            usage.in_flight += has_pipe
            usage.is_kept |= not has_pipe
            self.update(name)

    def close(self, names: list[bytes]) -> None:
        """Count a message less: it was received, or never will be. Clause FS-10."""
        for name in names:
            self.usages[name].in_flight -= 1
            self.update(name)

    def announce_counted(self, holds: Holds, name: bytes) -> None:
        """Count a message that has no pipe. Clause LIFE-2."""
        self.usage(name).counted += 1
        self.update(name)

    def close_counted(self, holds: Holds, name: bytes) -> None:
        """Count it no more: it was received, or withdrawn. Clause MGR-14.

        Where it may be one that a killed manager had counted, this would take the count
        of another message, and the name is kept.
        """
        usage = self.usage(name)
        usage.counted -= 1
        usage.is_kept |= self.follows_a_killed_one
        self.update(name)

    # --- removal

    def update(self, name: bytes) -> None:
        """Decide anew whether a name of which there is news may be unreachable."""
        self.confirmed.discard(name)
        if self.usages[name].is_unreachable():
            self.candidates.add(name)
        else:
            self.candidates.discard(name)

    def begin_sweep(self) -> None:
        """Have this sweep confirm the candidates, unless it brings news of them."""
        self.confirmed, self.candidates = self.candidates, set()

    def discard(self, name: bytes) -> bool:
        """Forget a name; return whether there may be a file of it."""
        return self.usages.pop(name).was_held

    def is_journal_long(self) -> bool:
        """Return whether most of the journal's lines are of names that are gone."""
        return self.lines >= self.spare_lines + 2 * len(self.usages)
