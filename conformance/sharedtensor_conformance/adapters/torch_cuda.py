"""The adapter for PyTorch on the CPU and on a CUDA device.

It is separate from the adapter ``torch`` because claims are declared: a run with
``torch`` judges only the CPU, and a run with this one on a machine without a device
reports each device case as not run. Both have the same name in reports, so that their
reports can be combined and the same expectations apply.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sharedtensor_conformance.adapter import Number, Tensor
from sharedtensor_conformance.adapters.torch import TorchOperations
from sharedtensor_conformance.adapters.torch import conformance_adapter as on_the_cpu

conformance_adapter = replace(
    on_the_cpu,
    operations="sharedtensor_conformance.adapters.torch_cuda:TorchCudaOperations",
    claims=on_the_cpu.claims | {"cuda", "events"},
    devices=("cpu", "cuda"),
    deadline=30.0,
    preload=False,
)
"""The deadline covers the set-up of a device in a process. Nothing is forked from one
that has imported the libraries of CUDA: nobody has seen that work on a device.
"""

OWN_ALLOCATION = 10 << 20
"""From this many bytes on PyTorch asks CUDA for each block; smaller ones it carves."""

ALIGNMENT = 16
"""Bytes at multiples of which parts of one allocation begin."""


class TorchCudaOperations(TorchOperations):
    """The operations on tensors of PyTorch on a CUDA device."""

    def device_unavailable(self, device: str) -> str:
        """Return why there is no CUDA device; PyTorch has no simulated one."""
        if device != "cuda":
            return f"PyTorch has no device {device!r}"
        if not self.torch.version.cuda:
            return f"this PyTorch ({self.torch.__version__}) was built without CUDA"
        if not self.torch.cuda.is_available():
            return (
                "torch.cuda.is_available() is false: there is no GPU, no driver, or "
                f"none for CUDA {self.torch.version.cuda}, for which this PyTorch "
                f"({self.torch.__version__}) was built"
            )
        return ""

    def use_device(self, device: str) -> None:
        """Make the first device the current one, and use each of them once."""
        for index in reversed(range(self.device_count())):
            self.torch.cuda.set_device(index)
            self.torch.cuda.synchronize()

    def make_on_device(self, values: list[Number], dtype: str) -> Tensor:
        """Return a tensor that lies alone in a large allocation."""
        return self.carve([(values, dtype)])[0]

    def carve(self, parts: list[tuple[list[Number], str]]) -> list[Tensor]:
        """Return tensors in one large allocation, one for each part."""
        there = [self.torch.tensor(v, dtype=self._dtype(dtype)) for v, dtype in parts]
        sizes = [-(-t.nbytes // ALIGNMENT) * ALIGNMENT for t in there]
        block = self.make_block(max(sum(sizes), OWN_ALLOCATION))
        tensors = []
        for number, tensor in enumerate(there):
            start = sum(sizes[:number])
            place = block[start : start + tensor.nbytes].view(tensor.dtype)
            tensors.append(place.copy_(tensor))
        return tensors

    def write_later(self, tensor: Tensor, index: int, value: Number) -> None:
        """Fill one element, which a kernel does later."""
        tensor.detach()[index].fill_(value)

    def device_values(self, tensor: Tensor) -> list[Number]:
        """Return the values, after this process's own work."""
        return self.values(tensor)

    def synchronize(self) -> None:
        """Call ``torch.cuda.synchronize()`` for each device."""
        for index in range(self.device_count()):
            self.torch.cuda.synchronize(index)

    def collect(self) -> None:
        """Give back what receivers have dropped, and what PyTorch keeps for later."""
        self.torch.cuda.ipc_collect()
        self.torch.cuda.empty_cache()

    def device_memory_used(self) -> int:
        """Return the bytes in use, over all processes."""
        free, total = self.torch.cuda.mem_get_info()
        return int(total - free)

    def device_memory_free(self) -> int:
        """Return the bytes that are free."""
        return int(self.torch.cuda.mem_get_info()[0])

    def make_block(self, nbytes: int) -> Tensor:
        """Return bytes that nobody has written, from the driver.

        Nothing that PyTorch keeps for later is used for them: a part of a block that is
        larger would share its handle with others.
        """
        self.torch.cuda.empty_cache()
        return self.torch.empty(nbytes, dtype=self.torch.uint8, device="cuda")

    def device_count(self) -> int:
        """Return ``torch.cuda.device_count()``."""
        return int(self.torch.cuda.device_count())

    def make_on(self, index: int, values: list[Number], dtype: str) -> Tensor:
        """Return a tensor on the device with this index."""
        return self.torch.tensor(
            values, dtype=self._dtype(dtype), device=f"cuda:{index}"
        )

    def device_of(self, tensor: Tensor) -> int:
        """Return the index of the tensor's device."""
        return int(tensor.device.index)

    def record_event(self) -> Any:
        """Return a recorded event that other processes can be sent."""
        event = self.torch.cuda.Event(interprocess=True)
        event.record()
        return event

    def wait_event(self, event: Any) -> None:
        """Call the event's ``wait()``: the current stream waits."""
        event.wait()
