"""Chapter SEC: who else may touch what is shared."""

import os
import stat

from sharedtensor_conformance.harness import check, clause, eventually

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def check_that_owner_alone_has_access(stage, names):
    """Check mode and user of each of the files."""
    for name in names:
        status = stage.segment_status(name)
        check.equal(status["mode"] & OTHERS, 0, "group and others may do nothing")
        check.equal(status["uid"], os.getuid(), "it belongs to the user")


@clause("SEC-1", vary=("strategy",))
def test_segment_is_accessible_to_its_owner_alone(sender, receiver, channel, stage):
    """A process sends a tensor; its file is looked at in flight and when received."""
    before = stage.segments()
    tensor = sender.make([1, 2, 3])
    sender.put(tensor, receiver, channel)
    is_there = lambda: stage.segments() - before  # noqa: E731
    eventually(is_there, "the storage has a file", within=stage.grace)
    check_that_owner_alone_has_access(stage, stage.segments() - before)
    arrived = receiver.get(sender, channel)
    check.equal(arrived.values(), [1, 2, 3], "the tensor arrives")
    check_that_owner_alone_has_access(stage, stage.segments() - before)


@clause("SEC-1", profiles=("share",), vary=("strategy",))
def test_segment_shared_on_request_is_accessible_to_its_owner_alone(owner, stage):
    """The owner shares tensors of several sizes; their files are looked at."""
    before = stage.segments()
    for size in (1, 100, 3000):
        owner.make([n + 0.5 for n in range(size)]).share()
    names = stage.segments() - before
    check.equal(len(names), 3, "each storage has a file")
    check_that_owner_alone_has_access(stage, names)


@clause("SEC-2", profiles=("share",), vary=("strategy",))
def test_socket_of_the_manager_lies_in_a_directory_of_its_user_alone(stage):
    """The owner shares a tensor; the directories of the manager's sockets are read."""
    with stage.fresh() as play:
        tensor = play.owner.make([4, 5, 6])
        tensor.share()
        check.equal(tensor.is_shared(), True, "the tensor is shared")
        managers = play.managers()
        check(managers, "there is a manager")
        sockets = [path for manager in managers for path in manager["sockets"]]
        for path in sockets:
            if path.startswith("/"):
                status = os.stat(os.path.dirname(path))
                forbidden = status.st_mode & OTHERS
                check.equal(forbidden, 0, "group and others may do nothing there")
                check.equal(status.st_uid, os.getuid(), "it belongs to the user")
