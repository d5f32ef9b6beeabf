"""Mutants of the drop-in surface."""

from sharedtensor_conformance.mutants.registry import mutant


@mutant("lacks_a_name", "API-1")
def lacks_a_name(steps):
    """The drop-in has no `Barrier`."""
    from sharedtensor import multiprocessing

    del multiprocessing.Barrier


@mutant("lacks_a_strategy_function", "API-2", "STRAT-1")
def lacks_a_strategy_function(steps):
    """The drop-in does not tell which strategies there are."""
    from sharedtensor import multiprocessing

    del multiprocessing.get_all_sharing_strategies


@mutant("context_hides_its_method", "API-3")
def context_hides_its_method(steps):
    """The context of `forkserver` says that it is that of `spawn`."""
    from sharedtensor.multiprocessing.context import ForkServerContext

    ForkServerContext.get_start_method = lambda self, allow_none=False: "spawn"
