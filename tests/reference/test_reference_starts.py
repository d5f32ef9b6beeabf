"""What a child is started with: long, several times, or never read."""

import pickle
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler

import pytest
import sharedtensor
import sharedtensor.multiprocessing as mp

LONG = "x" * 1_000_000  # more than a pipe takes


class Apart:
    """What is pickled by itself, so that the pickler does not know it from before."""

    def __init__(self, content):
        self.content = content

    def __reduce__(self):
        return pickle.loads, (bytes(ForkingPickler.dumps(self.content)),)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_arguments_may_be_long_and_have_a_descriptor_several_times(method):
    context = mp.get_context(method)
    ours, theirs = context.Pipe()
    tensor = sharedtensor.ones(1).share_memory_()
    arguments = [Apart(each) for each in (theirs, theirs, tensor, tensor)]
    process = context.Process(target=answer, args=(LONG, *arguments, LONG))
    process.start()
    theirs.close()
    assert [ours.recv(), ours.recv()] == [[1.0, 2_000_000]] * 2
    with pytest.raises(EOFError):
        ours.recv()
    process.join()
    assert process.exitcode == 0


def answer(text, first, second, *others):
    *tensors, long = others
    for end, tensor in zip((first, second), tensors, strict=True):
        end.send([float(tensor.numpy()[0]), len(text + long)])
        end.close()


NEVER_READS = """
import sharedtensor.multiprocessing as mp

if __name__ == "__main__":
    spawn = mp.get_context("spawn")
    spawn.set_executable("/bin/true")
    process = spawn.Process(target=print, args=("x" * 1_000_000,))
    process.start()
    process.join()
    print(process.exitcode)
"""


def test_start_returns_though_the_child_ends_before_it_has_read_its_arguments(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(NEVER_READS)
    command = [sys.executable, program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if sys.version_info < (3, 14) or not ended.returncode:
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "0\n", "")
    else:  # `multiprocessing` itself raises it where the child was faster
        assert ended.stderr.endswith("BrokenPipeError: [Errno 32] Broken pipe\n")


PRINTS = """
import sys
import sharedtensor
import sharedtensor.multiprocessing as mp


def child(tensors, queue):
    for stream in (sys.stdout, sys.stderr):
        print("this belongs to no tensor", file=stream, flush=True)
    queue.put([each.tolist() for each in tensors])


if __name__ == "__main__":
    with open(sys.argv[2], "w") as file:
        context = mp.get_context(sys.argv[1])
        queue = context.Queue()
        tensors = [sharedtensor.ones(20).share_memory_() for _ in range(4)]
        process = context.Process(target=child, args=(tensors, queue))
        process.start()
        found = queue.get(timeout=60)
        process.join()
        right = [[1.0] * 20] * 4
        print(found == right, [each.tolist() for each in tensors] == right, file=file)
"""


def test_what_a_child_prints_reaches_no_tensor_of_a_parent_without_streams(
    ctx, tmp_path
):
    program, out = tmp_path / "program.py", tmp_path / "out"
    program.write_text(PRINTS)
    without_streams = 'exec "$@" <&- >&- 2>&-'
    child = (sys.executable, program, ctx.get_start_method(), out)
    subprocess.run(["sh", "-c", without_streams, "sh", *child], check=True, timeout=120)
    assert out.read_text() == "True True\n"
