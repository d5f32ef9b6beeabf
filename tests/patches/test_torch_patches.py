"""Each fix of torch does what it says: a clause that torch breaks holds with it.

What is shown of torch needs torch; the connections that carry descriptors do not.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch_patches
from holdings import descriptors
from sharedtensor_conformance.adapters import loader
from sharedtensor_conformance.clauses import load_clauses
from sharedtensor_conformance.report.records import read_report
from torch_patches.cargo import Cargo, Message
from torch_patches.messages import (
    AT_ONCE,
    LARGEST,
    pipe,
)

LIMIT = 500
needs_torch = pytest.mark.skipif(
    find_spec("torch") is None, reason="torch is not installed"
)

CASES = {
    "messages": "test_thread.py::test_simple_queue_uses_no_thread"
    "[file_descriptor-fork]",
    "queues": "test_grad.py::test_non_leaf_that_requires_grad_is_refused_in_put"
    "[file_descriptor-fork-queue-to_peer]",
    "strategies": "test_strat.py::"
    "test_tensor_sent_again_under_another_strategy_stays_where_it_is"
    "[file_descriptor-fork-to_peer]",
    "refusals": "test_life.py::test_message_that_cannot_be_pickled_leaves_nothing"
    "[file_system-fork-simple_queue-to_peer]",
    "handles": "test_sec.py::test_handle_that_claims_too_much_is_refused"
    "[file_system-fork-pipe-to_peer]",
    "grads": "test_grad.py::test_grad_that_is_present_is_shared"
    "[file_descriptor-fork-pipe-to_peer]",
    "kinds": "test_kind.py::test_tensor_of_any_kind_arrives_as_it_is_or_is_refused"
    "[file_descriptor-fork-to_peer-quantized]",
    "growth": "test_share.py::"
    "test_growing_a_shared_tensor_is_refused_and_changes_nothing"
    "[file_system-fork-to_peer]",
    "arrays": "test_share.py::test_array_over_the_tensor_survives_the_send"
    "[file_system-fork-pipe-to_peer]",
    "inheritance": "test_fd.py::"
    "test_program_that_is_started_has_no_descriptor_of_a_storage"
    "[file_descriptor-spawn-to_peer]",
    "files": "test_fail.py::test_sharing_in_a_full_shm_works_or_is_refused"
    "[file_system-fork]",
    "manager": "test_mgr.py::"
    "test_manager_holds_no_pipe_of_the_process_that_started_it"
    "[file_system-forkserver]",
    "forks": "test_life.py::"
    "test_tensor_that_a_forked_child_dropped_can_be_sent_by_its_parent"
    "[file_system-fork]",
    "children": "test_start.py::test_child_starts_with_the_strategy_of_its_parent"
    "[file_system-forkserver]",
}
"""For each fix a case of a clause that it restores."""


def verdicts(implementation, folder, *cases):
    """Run cases of the suite; return the verdict of each, and the clauses judged."""
    report = folder / f"{implementation.rpartition(':')[2]}.jsonl"
    suite = ("-m", "pytest", "--pyargs", "sharedtensor_conformance", "-q")
    quietly = ("-p", "no:cacheprovider", "--no-expectations", f"--report={report}")
    chosen = [f"--case={case}" for case in cases]
    command = [sys.executable, *suite, *quietly, f"--impl={implementation}", *chosen]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-3000:]
    judged = read_report(report).cases
    return {case.id: (case.verdict.value, set(case.clauses)) for case in judged}


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Return what all the cases are judged as, without the fixes and with them."""
    folder = tmp_path_factory.mktemp("judged")
    return {
        implementation: verdicts(implementation, folder, *CASES.values())
        for implementation in ("torch", "torch-patched")
    }


def test_adapter_is_found_by_its_name_in_a_checkout_alone(monkeypatch):
    assert loader.load_implementation("torch-patched").name == "torch-patched"
    monkeypatch.setitem(loader.IN_A_CHECKOUT, "torch-patched", "not_in_the_wheel")
    said = "there is no implementation 'torch-patched'"
    with pytest.raises(loader.LoadingError, match=said):
        loader.load_implementation("torch-patched")


def test_each_fix_has_a_case():
    assert set(CASES) == set(torch_patches.NAMES)


@needs_torch
@pytest.mark.parametrize("name", CASES)
def test_case_breaks_on_torch_and_holds_with_the_fixes(name, judged):
    case = CASES[name]
    verdict, clauses = judged["torch"][case]
    assert verdict in ("fail", "crash", "hang")
    assert judged["torch-patched"][case][0] == "pass"
    fix = next(fix for fix in torch_patches.FIXES if fix.name == name)
    assert clauses & set(fix.clauses)


@needs_torch
@pytest.mark.parametrize("name", CASES)
def test_case_breaks_without_its_fix(name, tmp_path):
    adapter = f"torch_patches.adapter:without_{name}"
    verdict, _ = verdicts(adapter, tmp_path, CASES[name])[CASES[name]]
    assert verdict in ("fail", "crash", "hang")


@pytest.mark.parametrize("fix", torch_patches.FIXES, ids=lambda fix: fix.name)
def test_fix_says_which_clauses_it_restores(fix):
    said = import_module(fix.place).apply.__doc__
    assert set(fix.clauses) <= set(load_clauses())
    assert [clause for clause in fix.clauses if clause not in said] == []


# Connections that carry descriptors


def files_with(texts):
    """Return a cargo with a file for each text."""
    cargo = Cargo()
    for text in texts:
        file = os.memfd_create("text")
        os.write(file, text)
        cargo.add(file)
        os.close(file)
    return cargo


@pytest.mark.parametrize("count", [0, 1, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 600])
@pytest.mark.parametrize("size", [0, LARGEST - 1, LARGEST, LARGEST + 1, 1 << 20])
def test_message_arrives_with_its_descriptors(count, size):
    before = descriptors()
    reader, writer = pipe(duplex=False)
    texts = [b"%d" % number for number in range(count)]
    body = os.urandom(size)
    writer.send_bytes(Message(body, files_with(texts)))
    message = reader.receive()
    assert bytes(message.body) == body
    taken = [message.cargo.take(place) for place in range(count)]
    assert [os.pread(file, 9, 0) for file in taken] == texts
    for file in taken:
        os.close(file)
    reader.close()
    writer.close()
    assert descriptors() == before


def test_descriptors_that_nobody_takes_are_closed():
    before = descriptors()
    reader, writer = pipe()
    writer.send_bytes(Message(b"", files_with([b"taken", b"left"])))
    writer.send_bytes(Message(b"", files_with([b"not read"])))
    message = reader.receive()
    os.close(message.cargo.take(0))
    with pytest.raises(RuntimeError, match="taken already"):
        message.cargo.take(0)
    del message
    reader.close()
    writer.close()
    assert descriptors() == before


def test_message_without_room_is_refused_and_can_be_sent_later():
    reader, writer = pipe()
    with reader, writer:
        sent = fill(writer)
        refused = Message(b"later", files_with([b"text"]))
        with pytest.raises(BlockingIOError):
            writer.send_message(refused, socket.MSG_DONTWAIT)
        for _ in range(sent):
            reader.receive()
        writer.send_message(refused, socket.MSG_DONTWAIT)
        arrived = reader.receive()
        assert bytes(arrived.body) == b"later"
        assert len(arrived.cargo.descriptors) == 1


def fill(writer):
    """Send small messages until there is room for none; return their number."""
    for number in range(100_000):
        try:
            writer.send_message(Message(b"small"), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return number
    raise AssertionError("there is always room")
