"""Random histories for the chapters SHARE and GRAD: see `histories`."""

from sharedtensor_conformance.chapters.histories import kinds_for
from sharedtensor_conformance.harness import clause


@clause("SHARE-12", vary=("strategy",))
def test_histories_end_as_the_model_says(implementation, histories):
    """Three processes take random steps; every tensor holds what it should."""
    histories(kinds_for(implementation.claims, grads=False))


@clause("GRAD-9", vary=("strategy",))
def test_histories_with_grads_end_as_the_model_says(implementation, histories):
    """Three processes take random steps, set grads, and look at those that came."""
    histories(kinds_for(implementation.claims, grads=True))
