"""The manager starts with whatever TMPDIR there is, or says why not."""

import os
import tempfile
from pathlib import Path

import pytest


def use(client, name, exists):
    """Hold and release a name."""
    client.call("register", name)
    client.call("release", name)
    client.call("sync")
    assert not exists(name)


def test_a_path_longer_than_a_socket_address(new_client, temporary, name, exists):
    deep = temporary / ("d" * 120) / ("e" * 120)
    deep.mkdir(parents=True)
    owner = new_client(environment={"TMPDIR": str(deep)})
    address = owner.call("address")
    assert address.startswith(str(deep))
    peer = new_client()
    peer.call("register", name, address)
    peer.call("release", name, address)
    use(owner, name, exists)


def test_a_directory_that_is_missing(new_client, temporary, name, exists):
    missing = temporary / "missing"
    owner = new_client(environment={"TMPDIR": str(missing)})
    use(owner, name, exists)
    assert not missing.exists()


def test_a_directory_that_goes_missing_later(new_client, temporary, name, exists):
    place = temporary / "place"
    place.mkdir()
    owner = new_client(environment={"TMPDIR": str(place)})
    owner.run("import tempfile; tempfile.gettempdir()")
    place.rmdir()
    use(owner, name, exists)


def test_a_directory_that_is_a_file(new_client, temporary, name, exists):
    file = temporary / "file"
    file.touch()
    use(new_client(environment={"TMPDIR": str(file)}), name, exists)


def test_a_directory_that_is_read_only(new_client):
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o555)
        owner = new_client(environment={"TMPDIR": directory})
        if os.geteuid() == 0:
            owner.run("become_nobody()")
        assert not owner.call("address").startswith(directory)
        assert list(Path(directory).iterdir()) == []


@pytest.mark.parametrize("bases", [[], ["/proc"], ["/nowhere/at/all", "/proc"]])
def test_no_usable_directory_is_an_error(new_client, managers, eventually, bases):
    client = new_client()
    with pytest.raises(Exception, match="Set TMPDIR to a directory") as failure:
        client.run(
            "launch.candidate_bases = lambda: bases\nclient.address()", bases=bases
        )
    assert failure.value.args[0] == "ManagerError"
    eventually(lambda: not managers())


@pytest.mark.parametrize("grace", ["soon", "-1", "nan", "inf"])
def test_a_grace_period_that_is_no_time_is_an_error(new_client, grace):
    client = new_client(environment={"SHAREDTENSOR_MANAGER_GRACE": grace})
    with pytest.raises(Exception, match="Set it to a number of seconds") as failure:
        client.call("address")
    assert failure.value.args[0] == "ManagerError"


def test_an_interpreter_that_does_not_start_is_an_error(
    new_client, temporary, broken_python
):
    client = new_client()
    with pytest.raises(Exception, match="ended at once, with status 1") as failure:
        client.run(
            "import multiprocessing.spawn as s\n"
            f"s.set_executable({broken_python!r})\nclient.address()"
        )
    assert failure.value.args[0] == "ManagerError"
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("known", [None, b"", "/bin/true", "/nowhere/python3"])
def test_a_program_that_does_not_know_its_python_is_told_what_to_do(
    new_client, temporary, known
):
    client = new_client()
    with pytest.raises(Exception, match="no Python interpreter is known") as failure:
        client.run(
            "import sys, multiprocessing.spawn as s\n"
            f"s._python_exe = sys.executable = {known!r}\nclient.address()"
        )
    assert failure.value.args[0] == "ManagerError"
    assert "file_descriptor" in failure.value.args[1]
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("known", [None, "/bin/true"])
def test_python_that_runs_the_program_starts_the_manager_if_no_other_can(
    new_client, known
):
    client = new_client()
    client.run(f"import multiprocessing.spawn as s\ns._python_exe = {known!r}")
    assert client.call("status")["clients"] == 1


UNDER_A_MASK = """
import os
if os.geteuid() == 0:
    become_nobody()
os.umask(0o777)
"""


def test_a_umask_that_takes_everything_from_the_user(new_client):
    """Clause MGR-9. As root nothing would show: root may open what is closed."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o777)
        clients = [new_client(environment={"TMPDIR": directory}) for _ in range(2)]
        for client in clients:
            client.run(UNDER_A_MASK)
        address = clients[0].call("address")
        assert address.startswith(directory)
        clients[1].call("register", "sharedtensor-x", address)
        assert clients[0].call("status")["clients"] == 2


WRITTEN_TO_A_CLOSED_STREAM = """
import os
os.close(2)
client.register(name)
try:
    os.write(2, b"a warning")
except OSError:
    pass
"""


def test_what_is_written_to_a_closed_stream_does_not_reach_it(new_client, name, exists):
    """Clause MGR-6. The connection must not have the number of a stream."""
    owner = new_client()
    owner.run(WRITTEN_TO_A_CLOSED_STREAM, name=name)
    owner.call("sync")
    assert exists(name)


def test_that_holds_of_a_connection_to_another_manager_too(new_client, name, exists):
    """Clause MGR-6."""
    address = new_client().call("address")
    owner = new_client()
    owner.call("adopt", address)
    owner.run(WRITTEN_TO_A_CLOSED_STREAM, name=name)
    owner.call("sync")
    assert exists(name)
