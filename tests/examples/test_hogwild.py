"""The Hogwild example runs as it is printed, and learns."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

# Found and not imported: each worker would import it for a second.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None, reason="it has the data of the example"
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "hogwild.py"
ACCURACY = re.compile(r"accuracy: (0\.\d+|1\.0+) together, (0\.\d+|1\.0+) alone")


def run(*arguments):
    """Run the example; return its pid, exit code and output."""
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLE), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            output, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    return process.pid, process.returncode, output, errors


@pytest.mark.parametrize(
    ("start_method", "strategy"),
    [("spawn", "file_descriptor"), ("fork", "file_system")],
)
def test_processes_together_learn_as_well_as_one(start_method, strategy):
    pid, code, output, errors = run(
        "--workers=4", f"--start-method={start_method}", f"--strategy={strategy}"
    )
    assert (code, errors) == (0, "")
    found = ACCURACY.search(output)
    assert found, output
    together, alone = map(float, found.groups())
    assert together > 0.9
    assert abs(together - alone) <= 0.02
    left = [n for n in os.listdir("/dev/shm") if n.startswith(f"sharedtensor-{pid}-")]
    assert not left


def test_accuracy_is_printed_while_it_rises():
    _, _, output, _ = run("--workers=2", "--epochs=3", "--start-method=fork")
    together = output.partition("1 process")[0]
    shown = [float(each) for each in re.findall(r"accuracy (0\.\d+)", together)]
    assert len(shown) == 3
    assert shown[-1] > shown[0]


@pytest.mark.parametrize("option", ["--workers=0", "--epochs=0", "--strategy=none"])
def test_impossible_option_is_refused_in_a_sentence(option):
    _, code, _, errors = run(option)
    assert code == 2
    assert "error:" in errors
    assert "Traceback" not in errors
