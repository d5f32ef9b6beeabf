"""Owners are forked from a process that has imported the implementation, where it can.

What is observed here is an owner as the kernel sees it, and why a template is refused.
"""

from __future__ import annotations

import errno
import os
import textwrap
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.adapters import reference
from sharedtensor_conformance.cli import main
from sharedtensor_conformance.harness.case.axes import Configuration
from sharedtensor_conformance.harness.case.outcomes import HarnessFault
from sharedtensor_conformance.harness.kernel import process_tree
from sharedtensor_conformance.harness.ledger import ledger
from sharedtensor_conformance.harness.remote import wire
from sharedtensor_conformance.harness.stage.stage import Stage
from sharedtensor_conformance.harness.supervisor import (
    preloading,
    stage_folder,
)
from sharedtensor_conformance.harness.supervisor.supervisor import Supervisor
from sharedtensor_conformance.harness.supervisor.supervisor_client import (
    processes_with_mark,
)
from sharedtensor_conformance.harness.supervisor.template import Template
from suites import NOTHING_LEFT

SPAWN = Configuration("file_descriptor", "spawn")
PRELOADED = replace(reference.conformance_adapter, preload=True)


@pytest.fixture(scope="module")
def template():
    with closing(Template("reference", PRELOADED)) as made:
        yield made


@pytest.fixture
def own_template():
    """A template that the test may end."""
    with closing(Template("reference", PRELOADED)) as made:
        yield made


@pytest.fixture
def stage(template):
    with closing(owner_from(template)) as made:
        yield made


def owner_from(template: Template, start_method: str = "spawn") -> Stage:
    where = replace(SPAWN, start_method=start_method)
    return Stage("reference", PRELOADED, where, template)


def environment_of(pid: int) -> str:
    return Path(f"/proc/{pid}/environ").read_text()


def test_owner_has_the_template_s_imports(stage, template):
    stage.owner.ensure_started()
    own = Path(f"/proc/{stage.owner.pid}/maps").read_text()
    assert template._process is not None
    theirs = Path(f"/proc/{template._process.pid}/maps").read_text()
    numpy = [line for line in theirs.splitlines() if "_multiarray_umath" in line]
    assert numpy, "the template has imported NumPy"
    assert numpy[0] in own, "at the same address, which an import would not choose"


def test_parent_of_the_owner_is_its_supervisor(stage):
    stage.owner.ensure_started()
    parent = int(process_tree.stat(stage.owner.pid)[1])
    assert "supervisor.py" in process_tree.command(parent)
    stage.owner.leave()
    status = stage.supervision.run(Supervisor.status)
    assert status == 0, "so it knows how the owner ended"


def test_owner_looks_like_one_from_a_clean_interpreter(stage):
    stage.owner.ensure_started()
    pid = stage.owner.pid
    assert process_tree.command(pid).endswith("sharedtensor_conformance.harness.owner")
    assert os.getsid(pid) == pid
    targets = [os.readlink(f"/proc/{pid}/fd/{number}") for number in range(3)]
    log = str(stage.supervision.log)
    assert targets == [os.devnull, log, log]
    assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "1000"


def test_owner_and_what_it_forks_are_found_by_the_folder_of_the_stage(stage, template):
    with closing(owner_from(template, "fork")) as forked:
        forked.peer.ensure_started()
        found = processes_with_mark(str(forked.supervision.folder))
        assert {forked.owner.pid, forked.peer.pid} <= set(found)


def test_owners_have_the_private_shm_of_their_stage(stage, template):
    stage.owner.ensure_started()
    with closing(owner_from(template)) as other:
        other.owner.ensure_started()
        pids = (stage.owner.pid, other.owner.pid, os.getpid())
        spaces = {os.readlink(f"/proc/{pid}/ns/mnt") for pid in pids}
        assert len(spaces) == (3 if stage.supervision.private else 1)


def test_variables_of_a_stage_are_seen_by_the_import(stage, template):
    with stage.fresh(environment={"STS_OF_THE_STAGE": "1"}) as isolated:
        isolated.owner.ensure_started()
        assert "STS_OF_THE_STAGE=1" in environment_of(isolated.owner.pid)


def test_peers_of_a_fork_server_find_the_implementation_imported(template):
    with closing(owner_from(template, "forkserver")) as stage:
        stage.peer.ensure_started()
        server = int(process_tree.stat(stage.peer.pid)[1])
        assert server != stage.owner.pid
        assert "_multiarray_umath" in Path(f"/proc/{server}/maps").read_text()


def test_stages_leave_no_descriptor_of_theirs_here(stage, template):
    stage.owner.ensure_started()  # and what is opened once is open

    def round_of_a_stage():
        with stage.fresh() as isolated:
            isolated.peer.ensure_started()

    round_of_a_stage()
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        round_of_a_stage()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_nothing_is_left_when_everything_is_closed(own_template):
    before = set(process_tree.children(os.getpid()))
    stage = owner_from(own_template)
    stage.peer.ensure_started()
    # Orphans of other tests may become children of this process at any time.
    started = set(process_tree.children(os.getpid())) - before
    assert own_template._process.pid in started
    folder = stage.supervision.folder
    assert processes_with_mark(str(folder))
    stage.close()
    own_template.close()
    assert not folder.exists()
    assert not processes_with_mark(str(folder))
    assert not started & set(process_tree.children(os.getpid()))


def test_owners_go_on_when_the_template_has_ended(own_template):
    with closing(owner_from(own_template)) as stage:
        stage.owner.ensure_started()
        own_template.close()
        assert stage.owner.make([1.0]).values() == [1.0]


def test_template_that_was_killed_is_a_fault_of_the_suite(own_template):
    assert own_template.is_ready()
    own_template._process.kill()
    own_template._process.wait()
    with pytest.raises(HarnessFault, match="the template process gave no answer"):
        owner_from(own_template).owner.ensure_started()


# The template of another process: of the controller, for workers


@pytest.fixture
def joined(template):
    assert template.is_ready()
    with closing(Template("reference", PRELOADED, template.address)) as made:
        yield made


def test_owners_of_several_processes_are_forked_from_one_template(template, joined):
    with (
        closing(owner_from(template)) as own,
        closing(owner_from(joined)) as other,
    ):
        assert [stage.owner.make([1.0]).values() for stage in (own, other)] == [[1]] * 2
        assert joined._process is None
        parents = {
            int(process_tree.stat(int(process_tree.stat(stage.owner.pid)[1]))[1])
            for stage in (own, other)
        }
        assert parents == {template._process.pid}, "of the supervisors of both"
        assert template.address in ledger.sockets(template._process.pid)
        assert template.address not in ledger.sockets(other.owner.pid)


def test_template_goes_on_when_another_process_has_left(template, joined):
    assert joined.is_ready()
    joined.close()
    for _ in range(2):  # it has noticed when it forks the second one
        with closing(owner_from(template)) as stage:
            assert stage.owner.make([1.0]).values() == [1]


def test_template_of_another_process_that_has_gone_is_replaced(own_template):
    assert own_template.is_ready()
    joined = Template("reference", PRELOADED, own_template.address)
    own_template.close()
    with closing(joined), closing(owner_from(joined)) as stage:
        assert stage.owner.make([1.0]).values() == [1]
        assert joined._process is not None


def test_template_ends_with_who_started_it_and_removes_its_folder(own_template):
    assert own_template.is_ready()
    joined = Template("reference", PRELOADED, own_template.address)
    assert joined.is_ready()
    folder = Path(own_template.address).parent
    assert folder.is_dir()
    own_template._socket.close()  # as where its controller is killed
    own_template._process.wait(timeout=20)
    assert not folder.exists()
    joined.close()


def test_nothing_is_left_of_a_stage_whose_controller_goes_before_it_says_what_to_do(
    template,
):
    supervision = Stage("reference", PRELOADED, SPAWN, template).supervision
    root = stage_folder.new_path()
    assert template.is_ready()
    forked, control = template.start_supervisor(supervision._job(root))
    stage_folder.listen_when_made(root, control, wire.after(60)).close()
    assert Path(root).is_dir()
    control.close()
    forked.wait(timeout=20)
    assert not Path(root).exists()
    assert not processes_with_mark(root)


def test_run_with_workers_imports_the_implementation_once(suite):
    chosen = "--case=test_share.py::test_receiver_finds_values_shape_and_dtype*"
    workers = ("-n2", f"--basetemp={suite.folder / 'b'}")
    done = suite("--impl=noted_imports:preloaded", chosen, *workers)
    assert set(done.verdicts.values()) == {"pass"}
    lines = (suite.folder / "imports").read_text().splitlines()
    owners = [line for line in lines if "harness.owner" in line]
    assert len(owners) == 1, "all owners were forked from one template"
    assert "--template" in owners[0]
    assert done.left == NOTHING_LEFT


# Refusals

REFUSED = {
    "import threading; threading.Thread(target=threading.Event().wait, daemon=True)"
    ".start()": "the import leaves 2 threads, and a fork has one of them",
    "FILE = open('/dev/zero')": "the import leaves /dev/zero open",
    "import subprocess; CHILD = subprocess.Popen(['sleep', '100'])": (
        "the import starts a process"
    ),
    "1 / 0": "the import raises ZeroDivisionError",
    "import os; os._exit(3)": "the process that imported it has ended",
    "import time; time.sleep(1000)": "the import takes more than 3 s",
}


@pytest.fixture
def importing(tmp_path, monkeypatch):
    """Make an adapter whose operations are in a module with this line."""

    def make(line: str) -> tuple[str, Implementation]:
        path = tmp_path / "declares_preload.py"
        path.write_text(
            textwrap.dedent(
                """\
                from dataclasses import replace
                from sharedtensor_conformance.adapters import reference

                conformance_adapter = replace(
                    reference.conformance_adapter,
                    operations="preloaded_operations:ReferenceOperations",
                    preload=True,
                )
                """
            )
        )
        operations = tmp_path / "preloaded_operations.py"
        operations.write_text(
            "from sharedtensor_conformance.adapters.reference import "
            f"ReferenceOperations\n{line}\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        implementation = replace(
            PRELOADED,
            operations="preloaded_operations:ReferenceOperations",
            patience=3.0 if "sleep(1000" in line else 90.0,
        )
        return "declares_preload", implementation

    return make


@pytest.mark.parametrize(("line", "why"), REFUSED.items(), ids=range(len(REFUSED)))
def test_template_says_why_it_cannot_be_used(importing, line, why):
    name, implementation = importing(line)
    template = Template(f"{name}:conformance_adapter", implementation)
    assert not template.is_ready()
    assert template.why_not == why
    assert template._process is None
    assert not processes_with_mark(template._mark), (
        "nor is there what the import has started"
    )


def test_kernel_that_forbids_to_rewrite_the_environment_is_a_reason(monkeypatch):
    def forbidden(root):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(preloading, "_write_stage_folder", forbidden)
    monkeypatch.setattr(process_tree, "children", lambda pid: [])
    monkeypatch.setattr(preloading.os, "listdir", lambda path: ["1"])
    monkeypatch.setenv(preloading.STAGE_VARIABLE, "sts-x")
    assert preloading._unfit_reason(preloading._descriptors()) == (
        "a process may not rewrite its environment here (Permission denied)"
    )


def test_stage_does_without_a_template_that_cannot_be_used(importing):
    line, why = next(iter(REFUSED.items()))
    name, implementation = importing(line)
    name = f"{name}:conformance_adapter"
    template = Template(name, implementation)
    made = Stage(name, implementation, SPAWN, template)
    with closing(template), closing(made) as stage:
        assert stage.owner.make([1.0]).values() == [1.0]
        assert template.why_not == why


def test_declaration_that_does_not_hold_is_a_problem_of_the_adapter(importing, capsys):
    line, why = next(iter(REFUSED.items()))
    name, _ = importing(line)
    assert main(["check-adapter", f"{name}:conformance_adapter"]) == 1
    assert f"problem: preload is declared, but {why}" in capsys.readouterr().out
