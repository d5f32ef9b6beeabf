"""Which files in `/dev/shm` the ledger takes for the implementation's."""

from sharedtensor_conformance.harness import ledger


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
