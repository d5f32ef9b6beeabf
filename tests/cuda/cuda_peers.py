"""What tests ask a `gpu_rules.Peer` for, and what they look at themselves.

Requests and answers are messages, so nothing depends on time.
"""

import gc
import os
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler

from sharedtensor import cuda
from sharedtensor.cuda import counts, devices, protocol, simulated


def run_alone(*arguments, folders=(), **options):
    """Run an interpreter that knows of no simulated device; return its end."""
    environment = {k: v for k, v in os.environ.items() if simulated.VARIABLE not in k}
    path = [*map(str, folders), *filter(None, sys.path)]
    environment["PYTHONPATH"] = os.pathsep.join(path)
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True, text=True, env=environment, timeout=120, **options,
    )  # fmt: skip


def counts_in_use(device="sim:0"):
    """Return the states of the counts of all that this process has sent."""
    gc.collect()
    table = devices.device_state(device).own_table
    states = [] if table is None else table.slots["state"].tolist()
    return sorted(state for state in states if state != counts.VACANT)


def drop_everything(held):
    """Hold nothing, and free what others have released."""
    held.clear()
    gc.collect()
    for state in devices._states.values():
        protocol.collect(state)


# Requests about tensors


def keep(held, name, value):
    held[name] = value


def give(held, name):
    return held[name]


def drop(held, name):
    del held[name]


def read(held, name, index=Ellipsis):
    value = held[name].read(index)
    return value if held[name][index].shape == () else value.tolist()


def write(held, name, index, value):
    """Write and leave it pending."""
    held[name].write(index, value)


def synchronize(held, device="sim:0"):
    cuda.synchronize(device)


def dump(held, name):
    """Pickle a tensor for a channel, but keep the bytes."""
    return bytes(ForkingPickler.dumps(held[name]))


def load(held, name, message):
    held[name] = ForkingPickler.loads(message)
