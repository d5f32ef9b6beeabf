"""Chapter MGR: the daemon that removes the names which nobody can use any more."""

import os

from sharedtensor_conformance.harness import check, clause, eventually


def share_one(actor, values):
    """Let `actor` hold a tensor that it has shared."""
    tensor = actor.make(values)
    tensor.share()
    return tensor


@clause("MGR-1", profiles=("share",))
def test_manager_has_a_session_and_a_process_group_of_its_own(stage):
    """The owner shares a tensor; the sessions and groups of all are compared."""
    with stage.fresh() as play:
        tensor = share_one(play.owner, [1, 2, 3])
        arrived = play.owner.send(tensor, play.peer)
        check.equal(arrived.values(), [1, 2, 3], "the peer uses it too")
        managers = play.managers()
        check(managers, "there is a manager")
        users = {actor.pid for actor in (play.owner, play.peer)}
        sessions = {os.getsid(pid) for pid in users}
        groups = {os.getpgid(pid) for pid in users}
        for manager in managers:
            check(manager["session"] not in sessions, "its session is its own")
            check(manager["group"] not in groups, "its process group is its own")


@clause("MGR-2", profiles=("share",))
def test_manager_removes_the_names_of_killed_clients(stage):
    """All three share tensors and one is in flight; all are killed."""
    with stage.fresh() as play:
        actors = [play.owner, play.peer, play.bystander]
        tensors = [share_one(actor, [4, 5, 6]) for actor in actors]
        arrived = play.peer.send(tensors[1], play.bystander)
        check.equal(arrived.values(), [4, 5, 6], "a tensor is held by two")
        play.peer.put(tensors[1], play.owner)
        check(len(play.segments()) >= 3, "the names are there")
        for actor in reversed(actors):
            actor.kill()
        gone = lambda: not play.segments()  # noqa: E731
        eventually(gone, "the names are removed", within=stage.grace)


@clause("MGR-2", profiles=("share",), vary=())
def test_manager_removes_the_names_when_its_starter_is_killed_first(stage):
    """The owner starts the manager and is killed; the peer goes on, and is killed."""
    with stage.fresh() as play:
        share_one(play.owner, [7, 8, 9])
        held = share_one(play.peer, [10, 11, 12])
        play.owner.kill()
        later = share_one(play.peer, [13, 14, 15])
        for tensor, values in ((held, [10, 11, 12]), (later, [13, 14, 15])):
            check.equal(tensor.values(), values, "the peer has its tensors")
        play.peer.kill()
        gone = lambda: not play.segments()  # noqa: E731
        eventually(gone, "the names are removed", within=stage.grace)


def users_leave(play):
    """Let all actors of the play exit normally."""
    for actor in (play.peer, play.bystander, play.owner):
        actor.leave()


def users_are_killed(play):
    """Kill all actors of the play."""
    for actor in (play.owner, play.bystander, play.peer):
        actor.kill()


def manager_goes_away(stage, end):
    """Share in a play, end it with `end`, and wait for the end of its manager."""
    with stage.fresh() as play:
        actors = (play.owner, play.peer, play.bystander)
        tensors = [share_one(actor, [16, 17, 18]) for actor in actors]
        check.equal(tensors[2].values(), [16, 17, 18], "the tensors are shared")
        managers = play.managers()
        check(managers, "there is a manager")
        sockets = [path for manager in managers for path in manager["sockets"]]
        paths = [path for path in sockets if path.startswith("/")]
        temporary = str(play.folder / "t")
        folders = {os.path.dirname(path) for path in paths} - {temporary}
        end(play)
        ended = lambda: not play.managers()  # noqa: E731
        eventually(ended, "the manager has ended", within=stage.grace)
        left = [path for path in (*paths, *folders) if os.path.lexists(path)]
        check.equal(left, [], "its socket and directory are removed")


@clause("MGR-3", profiles=("share",))
def test_manager_goes_away_after_its_users_have_left(stage):
    """All users of the manager exit normally while they hold tensors."""
    manager_goes_away(stage, users_leave)


@clause("MGR-3", profiles=("share",))
def test_manager_goes_away_after_its_users_were_killed(stage):
    """All users of the manager are killed while they hold tensors."""
    manager_goes_away(stage, users_are_killed)


@clause("MGR-4", profiles=("share",), vary=("strategy",))
def test_manager_holds_no_pipe_of_the_process_that_started_it(stage):
    """The owner opens a pipe, starts the manager, and the pipe's holders are listed."""
    with stage.fresh() as play:
        play.owner.open_pipe()
        pipes = {name for name in play.owner.targets() if name.startswith("pipe:")}
        check(pipes, "the owner has a pipe open")
        check.equal(play.managers(), [], "no manager has been started")
        tensor = share_one(play.owner, [19, 20, 21])
        check.equal(tensor.values(), [19, 20, 21], "the tensor is shared")
        managers = play.managers()
        check(managers, "there is a manager")
        for manager in managers:
            held = pipes & set(manager["descriptors"])
            check.equal(held, set(), "the manager holds no pipe of the owner's")


@clause("MGR-4", profiles=("share",), vary=("strategy",))
def test_manager_holds_no_socket_of_the_process_that_started_it(stage):
    """The sockets that the owner had before are compared with the manager's."""
    with stage.fresh() as play:
        play.owner.make([1, 2])
        sockets = {name for name in play.owner.targets() if "socket:" in name}
        check(sockets, "the owner has a socket open")
        tensor = share_one(play.owner, [22, 23, 24])
        check.equal(tensor.values(), [22, 23, 24], "the tensor is shared")
        for manager in play.managers():
            held = sockets & set(manager["descriptors"])
            check.equal(held, set(), "the manager holds no socket of the owner's")
