"""How a fault strikes processes, told without an implementation."""

import signal
import subprocess
import sys

import pytest
from sharedtensor_conformance.chapters.fault_round import is_ended_by

HANDLES = {
    "nothing": "",
    "ignores": "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "handles": "signal.signal(signal.SIGTERM, print)",
    "blocks": "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})",
}


@pytest.mark.parametrize("how", HANDLES)
def test_signal_ends_who_does_nothing_against_it(how):
    program = f"import signal; {HANDLES[how]}; print(flush=True); input()"
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], **streams) as process:
        process.stdout.readline()
        assert is_ended_by(process.pid, "SIGTERM") == (how == "nothing")
        assert is_ended_by(process.pid, "SIGKILL")
        assert not is_ended_by(process.pid, "SIGSTOP")
        process.send_signal(signal.SIGKILL)
