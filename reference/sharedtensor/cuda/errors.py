"""The errors of device memory, in the order in which a send can meet them.

A process asks for a device (`DeviceUnavailableError`), is not a forked child
(`ForkError`), allocates (`OutOfDeviceMemoryError`) and touches only memory that
it made or opened (`IllegalAddressError`). It sends; the receiver finds the
maker alive (`MakerGoneError`), takes the message once (`ReceivedTwiceError`)
and opens its handles (`DeviceHandleError`).
"""

from __future__ import annotations

from ..errors import SharedTensorError


class DeviceError(SharedTensorError, RuntimeError):
    """Something that a device, or the protocol of sharing one, refuses."""


class DeviceUnavailableError(DeviceError):
    """The device asked for does not exist here; the message says why."""


class ForkError(DeviceError):
    """A device was used in a child forked from a process that uses it.

    Clause CUDA-1.
    """


class OutOfDeviceMemoryError(DeviceError, MemoryError):
    """The device has no room, not even after a collection."""


class IllegalAddressError(DeviceError):
    """An address lies in no allocation that this process made or has open."""


class DeviceHandleError(DeviceError):
    """A memory or event handle cannot be used in this way or no longer."""


class MakerGoneError(DeviceError):
    """The process that a handle or a message leads to has ended. Clause CUDA-18."""


class ReceivedTwiceError(DeviceError):
    """A message of a device tensor was loaded a second time."""
