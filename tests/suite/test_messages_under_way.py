"""Processes are not used again while a message is under way that may still come."""

from __future__ import annotations

import pytest
from sharedtensor_conformance.adapters import reference
from sharedtensor_conformance.harness.case.axes import Configuration
from sharedtensor_conformance.harness.stage.stage import Stage
from sharedtensor_conformance.harness.supervisor.template import Template

FORK = Configuration("file_descriptor", "fork")


@pytest.fixture(scope="module")
def stage():
    template = Template("reference", reference.conformance_adapter)
    made = Stage("reference", reference.conformance_adapter, FORK, template)
    made.bystander.ensure_started()
    yield made
    made.close()
    template.close()


@pytest.mark.parametrize("ways", [("owner", "peer"), ("peer", "owner")])
def test_message_is_under_way_until_it_is_received(stage, ways):
    sender, receiver = (getattr(stage, name) for name in ways)
    for number in range(2):
        sender.put(sender.make([number]), receiver)
    assert stage.in_flight == 2
    for left in (1, 0):
        receiver.get(sender)
        assert stage.in_flight == left


def test_message_of_another_does_not_stand_for_it(stage):
    stage.peer.put(stage.peer.make([1]), stage.owner)
    stage.bystander.send(stage.bystander.make([2]), stage.owner)
    assert stage.in_flight == 1
    stage.owner.get(stage.peer)
    assert stage.in_flight == 0


def test_message_of_a_peer_of_one_case_goes_with_it(stage):
    child = stage.owner.start_peer()
    child.put(child.make([3]), stage.owner)
    stage.peer.put(stage.peer.make([4]), stage.owner)
    child.kill()
    assert stage.in_flight == 2
    stage.end_extra()
    assert stage.in_flight == 1, "the peer's may still come"
    assert stage.owner.get(stage.peer).values() == [4]
    assert stage.in_flight == 0
