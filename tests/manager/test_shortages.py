"""A manager that gets no descriptor or no memory serves on. Clauses FAULT-5, MGR-16."""

import errno
import os
import socket

import pytest
from sharedtensor.manager import daemon, serving
from sharedtensor.manager.serving import complete


class FullListener(daemon.Listener):
    """One for which the kernel has nothing left."""

    number: int

    def accept(self):
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(
    "number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS]
)
def test_a_connection_that_cannot_be_accepted_is_no_error(tmp_path, number):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listener = FullListener(listening, str(tmp_path))
        listener.number = number
        with pytest.raises(serving.OutOfResources):
            complete(daemon.Kernel(listener, -1).accept())
