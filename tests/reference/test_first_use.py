"""What must not depend on what a program has used before, nor on how it was started.

The processes of other tests have made tensors, and run by an interpreter from a file.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
import sharedtensor
from holdings import eventually

STRATEGIES = ["file_descriptor", "file_system"]
TIMEOUT = 60
HEAD = """
import os, sys
import sharedtensor as st
import sharedtensor.multiprocessing as mp

mp.set_sharing_strategy(sys.argv[1])
"""


@pytest.fixture
def run(tmp_path):
    """Run a program in a fresh interpreter; return what it prints.

    It has to leave nothing in its temporary directory.
    """

    def run(source, *arguments, **variables):
        program = tmp_path / "program.py"
        program.write_text(source)
        with tempfile.TemporaryDirectory(prefix="t") as temporary:  # short: for sockets
            ended = subprocess.run(
                [sys.executable, program, *arguments],
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                env={**os.environ, "TMPDIR": temporary, **variables},
                cwd=tmp_path,
            )
            assert (ended.returncode, ended.stderr) == (0, "")
            eventually(lambda: not os.listdir(temporary))
        return ended.stdout.split()

    return run


WORKERS_OF_ONE_TASK = """
def task(number):
    return st.ones(2) * number

with mp.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
    results = pool.map_async(task, range(6), chunksize=1).get(30)
print(*(int(each[1]) for each in results))
"""


@pytest.mark.parametrize("name", STRATEGIES)
def test_pool_goes_on_that_forks_while_its_first_result_arrives(run, name):
    """After pytorch#135705 and cpython#93580."""
    assert run(HEAD + WORKERS_OF_ONE_TASK, name) == list("012345")


def test_no_module_is_imported_after_the_package(run):
    program = HEAD + (
        "mp.set_start_method('fork')  # nothing is imported again\n"
        "before = {*sys.modules}\n"
        "queue, pool = mp.Queue(), mp.Pool(1)\n"
        "queue.put([st.ones(2, requires_grad=True), st.Parameter(st.ones(2))])\n"
        "queue.get(), pool.map(abs, [1]), st.arange(3).share_memory_()\n"
        "print(*(n for n in {*sys.modules} - before if 'sharedtensor' in n))\n"
        "print(*(n for n in {*sys.modules} - before if 'numpy' in n))\n"
        "pool.terminate()\n"
    )
    assert [run(program, name) for name in STRATEGIES] == [[], []]


IMPORTED_WHILE_PICKLED = """
import multiprocessing

class Lazy:
    def __reduce__(self):
        global tensor
        from sharedtensor import cuda
        cuda.use_simulated_device()
        tensor = cuda.tensor([0.0])
        return tuple, ([tensor],)

module = {"standard": multiprocessing, "own": mp}[sys.argv[2]]
here, there = module.Pipe()
here.send(Lazy())
there.recv()[0].write(0, 7.0)
print(tensor.tolist()[0])
"""


@pytest.mark.parametrize("channel", ["standard", "own"])
def test_tensor_whose_class_is_imported_while_it_is_pickled_is_shared(run, channel):
    """The pickler is made before the class is known."""
    assert run(HEAD + IMPORTED_WHILE_PICKLED, "file_descriptor", channel) == ["7.0"]


SHARES_BY_NAME = """
with open("starts", "a") as log:
    log.write("once\\n")
try:
    st.ones(3).share_memory_()
    print("shared")
except st.ManagerError as error:
    print("file_descriptor" in str(error))
mp.set_sharing_strategy("file_descriptor")
print(st.ones(3).share_memory_().is_shared())
"""
IS_NO_PYTHON = """
me = os.path.abspath("application")
with open(me, "w") as file:
    file.write(f"#!/bin/sh\\nexec '{sys.executable}' '{sys.argv[0]}' file_system\\n")
os.chmod(me, 0o755)
mp.set_executable(me)
sys.executable = me
"""


def test_program_is_not_started_as_its_own_manager(run, tmp_path):
    """After pyinstaller/pyinstaller#2688: the executable is the program itself."""
    said = run(HEAD + IS_NO_PYTHON + SHARES_BY_NAME, "file_system")
    assert said == ["True", "True"]
    assert (tmp_path / "starts").read_text() == "once\n"


def test_library_in_an_archive_shares_by_name(run, tmp_path):
    """After pex-tool/pex#527."""
    archive, folder = tmp_path / "library.zip", Path(sharedtensor.__file__).parent
    with zipfile.ZipFile(archive, "w") as file:
        for source in folder.rglob("*.py"):
            file.write(source, source.relative_to(folder.parent))
    program = HEAD + SHARES_BY_NAME + "print(st.__file__)\n"
    *said, where = run(program, "file_system", PYTHONPATH=str(archive))
    assert said == ["shared", "True"]
    assert where.startswith(str(archive))


SUBMODULES = """
import importlib, sharedtensor.multiprocessing as mp

mp.set_start_method("fork")  # there is no guard below
before = {}
for name in sys.argv[2:]:
    found = before[name] = getattr(mp, name)
    print(found is importlib.import_module("sharedtensor.multiprocessing." + name))
    standard = importlib.import_module("multiprocessing." + name)
    print(*(n for n in vars(standard) if not hasattr(found, n)))
here, there = mp.connection.Pipe()
there.send(st.ones(2))
print(mp.connection.wait([here], 10) == [here], int(here.recv()[1]))
print(isinstance(here, mp.connection.Connection))
with mp.pool.Pool(1) as pool:
    print(type(pool) is type(mp.Pool(1)))
print(type(mp.SimpleQueue()) is mp.queues.SimpleQueue)
print(all(getattr(mp, name) is found for name, found in before.items()))
"""
SUBMODULE_NAMES = [
    *("connection", "context", "dummy", "managers", "pool", "process", "queues"),
    *("reduction", "shared_memory", "sharedctypes", "synchronize", "util"),
]


def test_submodules_have_all_names_before_the_first_call_and_are_ours(run):
    found = run(HEAD + SUBMODULES, "file_descriptor", *SUBMODULE_NAMES)
    assert found == ["True"] * len(SUBMODULE_NAMES) + ["True", "1"] + ["True"] * 4


MODULE_AS_CONTEXT = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.managers import SyncManager
from queue import PriorityQueue

class Manager(SyncManager):
    pass

Manager.register("PriorityQueue", PriorityQueue)

def add(tensor):
    tensor += 1
    return tensor

if __name__ == "__main__":
    mp.set_start_method("spawn")
    tensor = st.zeros(1)
    with ProcessPoolExecutor(1, mp_context=mp) as executor:
        print(*(int(executor.submit(add, tensor).result(30)[0]) for _ in range(2)))
    with Manager(ctx=mp) as manager:
        queue = manager.PriorityQueue()
        queue.put((2, tensor))
        queue.put((1, None))
        print(queue.get()[0])
        queue.get()[1].fill_(8)
        print(int(tensor[0]))
"""


def test_module_is_a_context_and_an_own_manager_has_queues(run):
    """After pytorch#36156 and pytorch#56480."""
    said = run(HEAD + MODULE_AS_CONTEXT, "file_descriptor")
    assert said == ["1", "2", "1", "8"]


FORKED_BY_HAND = """
kept, (here, there) = st.zeros(2).share_memory_(), mp.Pipe()
for number in range(2):
    if not os.fork():
        kept[number] = number + 1
        there.send(st.ones(1) * (number + 5))
        if number:
            os._exit(0)
        sys.exit()
    os.wait()
print(int(here.recv()[0]), int(here.recv()[0]), *map(int, kept.tolist()))
there.send(kept)
print(here.recv().is_shared())
"""


@pytest.mark.parametrize("name", STRATEGIES)
def test_children_forked_by_hand_do_no_harm(run, name):
    """After benoitc/gunicorn#2478."""
    assert run(HEAD + FORKED_BY_HAND, name) == ["5", "6", "1", "2", "True"]


AT_THE_VERY_END = """
import atexit

class Late:
    def __init__(self):
        self.queue, self.itself = mp.SimpleQueue(), self

    def __del__(self):
        self.queue.put(st.ones(2).share_memory_())
        self.queue.get()

def exchange(queue):
    queue.put(st.ones(2))
    print(int(queue.get()[1]))

kept, sys.kept = Late(), Late()
del kept.itself
atexit.register(exchange, mp.SimpleQueue())
"""


@pytest.mark.parametrize("name", STRATEGIES)
def test_first_tensor_can_be_made_at_the_very_end(run, name):
    """After cpython#91577: finalizers run when hardly anything can be imported."""
    assert run(HEAD + AT_THE_VERY_END, name) == ["1"]
