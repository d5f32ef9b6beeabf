"""What the ledger finds in `/dev/shm`, among mappings and among sockets."""

import os
import socket
import tempfile

from sharedtensor_conformance.harness.ledger import ledger


def test_files_of_the_driver_and_semaphores_are_not_the_implementations(
    tmp_path, monkeypatch
):
    for name in ("cuda.shm.0.5a1.1", "sem.mp-x", "its-segment"):
        (tmp_path / name).touch()
    monkeypatch.setattr(ledger, "SHM", str(tmp_path))
    assert ledger.Segments("", private=True, known_pids=set()).names() == [
        "its-segment"
    ]


def test_a_mapping_of_the_driver_is_not_the_implementations():
    lines = b"/dev/shm/cuda.shm.0.5a1.1\n/dev/shm/its-segment\n/memfd:its-other\n"
    assert len(ledger.SHARED_MAPPING.findall(lines)) == 2


def test_sockets_have_any_bytes_in_their_paths():
    with (
        # a socket's path has at most 107 bytes, and TMPDIR may be longer
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        path = os.path.join(os.fsencode(folder), b"not utf-8 \xff")
        listener.bind(path)
        assert os.fsdecode(path) in ledger.sockets(os.getpid())
