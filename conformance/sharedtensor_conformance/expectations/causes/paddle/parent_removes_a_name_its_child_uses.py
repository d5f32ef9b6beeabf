"""A parent that drops a shared tensor deletes the file its forked child uses."""

import sys

import paddle
import paddle.incubate.multiprocessing as mp


def send(tensor, tensors, dropped):
    """Read and send what was inherited once the parent has dropped it."""
    dropped.get()
    tensors.put(tensor.tolist())
    tensors.put(tensor)


context = mp.get_context("fork")
tensors, dropped = context.SimpleQueue(), context.SimpleQueue()
tensors.put(paddle.ones([2]))
tensor = tensors.get()
process = context.Process(target=send, args=(tensor, tensors, dropped), daemon=True)
process.start()
process._args = ()
del process._args, tensor
dropped.put("dropped")
assert tensors.get() == [1, 1], "the child has the memory"
try:
    tensors.get()
except RuntimeError as error:
    said = str(error).splitlines()[0]
    print(f"the child's tensor cannot be received: {said}")
else:
    sys.exit(1)
finally:
    process.join()
