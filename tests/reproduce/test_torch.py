"""A known deviation of PyTorch as a program, where PyTorch is installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

GRAD = "test_grad.py::test_grad_that_is_present_arrives_with_its_values"


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_grad_that_torch_does_not_send_is_shown(report_of, reproduce, tmp_path):
    case = f"{GRAD}[file_descriptor-spawn-simple_queue-to_peer]"
    done = reproduce(report_of("torch", case), case, "--output=it.py")
    assert done.returncode == 0
    assert "not so: the grad has arrived" in done.stdout
    steps = (tmp_path / "it.py").read_text().partition("def steps():")[2]
    received = (
        't3 = peer.run(Actor.get, "owner", "simple_queue")\n'
        "    assert peer.grad(t3) is None\n"
    )
    assert f"    {received}\n\n" in steps.replace("'", '"')
