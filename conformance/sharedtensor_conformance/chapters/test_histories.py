"""Runs random histories of operations, and compares them with models.

The first two are about which tensors see a write. The others are about processes that
end: what arrives, what stays valid, and what is left at the end. A failure of such a
history breaks the clauses about the last step that concerned the failed object.
"""

from sharedtensor_conformance.chapters.history_steps import TENSOR_COUNTS
from sharedtensor_conformance.harness import clause


@clause("SHARE-12", prefers="spawn")
def test_histories_end_as_the_model_says(histories):
    """Three processes take random steps; every tensor holds what it should."""
    histories("aliasing")


@clause("GRAD-9", prefers="spawn")
def test_histories_with_grads_end_as_the_model_says(histories):
    """Three processes take random steps, set grads, and look at those that came."""
    histories("grads")


@clause(
    *("LIFE-2", "LIFE-3", "LIFE-4", "LIFE-5", "LIFE-6", "LIFE-8", "LIFE-9", "LIFE-10"),
    *("LIFE-7", "LIFE-14", "LIFE-17", "LIFE-20", "SHARE-12", "CHAN-4"),
    prefers="fork",
    isolated=True,
)
def test_histories_with_deaths_end_as_the_model_says(histories):
    """Processes share, exit and are killed; the others have what they had."""
    histories("deaths")


@clause(
    *("CHAN-4", "CHAN-8", "CHAN-12", "LIFE-6", "LIFE-7", "LIFE-15", "LIFE-16"),
    *("SHARE-12", "LIFE-9", "LIFE-10", "LIFE-14"),
    channels=("queue",),
    prefers="fork",
    isolated=True,
)
def test_histories_of_queues_end_as_the_model_says(histories):
    """Queues are filled and joined, and several processes wait on them."""
    histories("queues")


@clause(
    *("CHAN-4", "CHAN-6", "LIFE-7", "SHARE-12"),
    prefers="fork",
    isolated=True,
    in_flight=max(TENSOR_COUNTS),
)
def test_histories_at_limits_end_as_the_model_says(histories):
    """Messages have sizes, and as many tensors, at which something changes."""
    histories("limits")


@clause(
    *("START-1", "START-3", "START-4", "LIFE-6", "LIFE-11", "LIFE-22"),
    *("SHARE-12", "CHAN-4", "LIFE-7", "LIFE-17", "LIFE-9", "LIFE-10", "LIFE-14"),
    isolated=True,
    private=True,
    vary=("strategy", "start_method"),
)
def test_histories_with_starts_end_as_the_model_says(histories):
    """Processes are started with tensors, and while messages wait."""
    histories("starts")


@clause(
    "FD-5",
    "SHARE-12",
    "CHAN-4",
    "LIFE-7",
    profiles=("share",),
    isolated=True,
    vary=("strategy", "start_method"),
)
def test_histories_with_programs_end_as_the_model_says(histories):
    """Processes that got tensors, as arguments and in messages, start programs."""
    histories("programs")


@clause(
    *("MGR-10", "MGR-11", "MGR-12", "MGR-13", "MGR-14", "FS-2", "FS-8", "FS-9"),
    *("LIFE-6", "SHARE-12", "CHAN-4", "LIFE-9", "LIFE-10", "LIFE-14"),
    prefers="fork",
    isolated=True,
)
def test_histories_with_deaths_of_the_manager_end_as_the_model_says(histories):
    """The manager is killed, among processes that share, exit and are killed."""
    histories("managers")
