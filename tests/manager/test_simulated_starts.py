"""A starter is killed while it starts a manager, and others use the directory.

Schedules of the simulated kernel by hand: each was a fault of the protocol once, and
random runs come upon it once in ten thousand. Clauses LIFE-9, MGR-14.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).with_name("simulator")))
import search
from processes import ProtocolSteps, Simulation
from systems import DIRECTORY, SOCKET


@pytest.fixture
def simulation():
    found = Simulation(ProtocolSteps())
    yield found
    found.close()


def advance(simulation, name, label="has ended"):
    """Step one process until it is about to do what `label` says."""
    process = simulation.processes[name]
    for _ in range(1000):
        if process.label == label:
            return
        assert process.is_ready(), f"{name} waits: {process.label}"
        simulation.step(process)
    raise AssertionError(f"{name} does not come to this: {label}")


def manager_of(simulation, starter):
    """Return the name of the manager that a process has started last."""
    names = [one.name for one in simulation.managers()]
    return [name for name in names if name.startswith(f"{starter}/")][-1]


def kill(simulation, name):
    simulation.kill(simulation.processes[name])


async def makes_a_name_and_exits(client):
    await client.make("z")
    await client.exit()


def finish(simulation):
    """Let everybody end, and see that nothing is left."""
    while ready := simulation.ready():
        assert simulation.steps < 10_000
        simulation.step(ready[simulation.steps % len(ready)])
    simulation.verify_end()


@pytest.mark.parametrize("step", ["renames the presence pipe", "listens"])
def test_a_directory_that_another_manager_serves_stays(simulation, step):
    """The first manager's socket was bound; the one that is there now is another's."""
    search.two_share(simulation)
    advance(simulation, "a", step)
    kill(simulation, "a")
    advance(simulation, "b", "sends H")
    advance(simulation, manager_of(simulation, "a"))
    assert SOCKET in simulation.directory(DIRECTORY).entries
    finish(simulation)


def test_names_are_in_a_journal_that_the_next_client_finds(simulation):
    """The second manager is killed when it has read of a name, and its client is gone.

    Its directory had gone with the first one, and the name was left for ever.
    """
    search.two_share(simulation)
    advance(simulation, "a", "listens")
    kill(simulation, "a")
    advance(simulation, "b")
    advance(simulation, manager_of(simulation, "a"))
    second = manager_of(simulation, "b")
    advance(simulation, second, "writes its journal")
    simulation.step(simulation.processes[second])
    kill(simulation, second)
    client = simulation.client("c")
    client.run(makes_a_name_and_exits(client))
    finish(simulation)
    assert not simulation.files


def test_a_directory_goes_that_another_client_has_locked_for_a_moment(simulation):
    """That one is killed with the lock, before it has started a manager."""
    search.two_share(simulation)
    advance(simulation, "a", "listens")
    kill(simulation, "a")
    advance(simulation, "b", "removes the socket")
    first = manager_of(simulation, "a")
    for _ in range(20):
        if simulation.processes[first].is_ready():
            simulation.step(simulation.processes[first])
    kill(simulation, "b")
    finish(simulation)


def test_a_socket_that_listens_is_served_though_its_maker_is_dead(simulation):
    """A client has connected, and waits for an answer."""
    search.two_share(simulation)
    advance(simulation, "a", "tells the daemon")
    kill(simulation, "a")
    advance(simulation, "b", "waits for an answer")
    finish(simulation)
    assert len(simulation.managers()) == 1


def test_a_directory_stays_whose_presence_pipe_a_client_has_open(simulation):
    """A manager has read nothing when it is killed, so it has no journal.

    Without the presence pipe, the next manager would not wait for the silent child.
    """

    async def parent(client):
        await search.start_own_manager(client)
        await client.make("x")
        await client.fork(silent)
        await client.fork(child)
        await client.make("y")

    async def silent(client):
        await client.point("is silent", lambda: simulation.processes["a.2"].is_dead)
        await client.drop("x")
        await client.exit()

    async def child(client):
        await client.drop("x")
        await client.exit()

    client = simulation.client("a")
    client.run(parent(client))
    advance(simulation, "a", "sends H")
    while "a.2" not in simulation.processes:
        simulation.step(client)
    kill(simulation, manager_of(simulation, "a"))
    advance(simulation, "a", "listens")
    kill(simulation, "a")
    advance(simulation, manager_of(simulation, "a"))
    assert simulation.directory(DIRECTORY) is not None
    finish(simulation)


def test_nobody_knows_what_a_dead_client_made_for_a_manager_that_was_killed(simulation):
    """Another manager has come and gone meanwhile; the simulation sees no fault."""
    search.two_share(simulation)
    advance(simulation, "a")
    advance(simulation, manager_of(simulation, "a"))
    advance(simulation, "b", "makes the directory")
    kill(simulation, manager_of(simulation, "b"))
    client = simulation.client("c")
    client.run(makes_a_name_and_exits(client))
    advance(simulation, "c")
    advance(simulation, manager_of(simulation, "c"))
    assert simulation.kills_are_handled
    simulation.step(simulation.processes["b"])
    kill(simulation, "b")
    finish(simulation)
    assert simulation.directory(DIRECTORY) is not None
