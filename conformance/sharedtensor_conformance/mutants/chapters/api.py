"""Mutants of the drop-in surface."""

from sharedtensor_conformance.mutants.registry import ABSENT, mutant


@mutant("lacks_a_name", "API-1", replaces="multiprocessing.Barrier")
def lacks_a_name(Barrier):
    """The drop-in has no `Barrier`."""
    return ABSENT


@mutant(
    "lacks_a_strategy_function",
    "API-2",
    "STRAT-1",
    replaces="multiprocessing.get_all_sharing_strategies",
)
def lacks_a_strategy_function(get_all_sharing_strategies):
    """The drop-in does not tell which strategies there are."""
    return ABSENT


@mutant(
    "context_hides_its_method", "API-3", replaces="multiprocessing.context.CONTEXTS"
)
def context_hides_its_method(contexts):
    """The context of `forkserver` says that it is that of `spawn`."""

    class Hidden(type(contexts["forkserver"])):
        def get_start_method(self, allow_none=False):
            return "spawn"

    return contexts | {"forkserver": Hidden()}
