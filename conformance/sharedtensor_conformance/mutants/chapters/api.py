"""Mutants of the drop-in surface."""

import multiprocessing

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


@mutant(
    "setting_a_start_method_does_nothing",
    "API-4",
    replaces="multiprocessing.set_start_method",
)
def setting_a_start_method_does_nothing(set_start_method):
    """The start method that a program sets is verified and forgotten."""
    from sharedtensor.multiprocessing import get_context

    return lambda method, force=False: get_context(method) and None


@mutant(
    "listing_the_start_methods_sets_one",
    "API-4",
    replaces="multiprocessing.get_all_start_methods",
)
def listing_the_start_methods_sets_one(get_all_start_methods):
    """`get_all_start_methods` makes Python's default that of the program."""

    def list_all():
        multiprocessing.get_start_method()
        return get_all_start_methods()

    return list_all


@mutant(
    "spawns_unless_told_otherwise",
    "API-4",
    replaces=(
        "multiprocessing.context.DefaultContext.get_start_method",
        "multiprocessing.get_start_method",
    ),
)
def spawns_unless_told_otherwise(of_the_context, of_the_module):
    """The start method of a program that has set none is `spawn`."""

    def get(self, allow_none=False):
        was_set = multiprocessing.get_start_method(allow_none=True)
        return was_set or (None if allow_none else "spawn")

    return get, lambda allow_none=False: get(None, allow_none)


@mutant(
    "processes_are_spawned_whatever_was_set",
    "API-4",
    replaces="multiprocessing.context.Process._Popen",
)
def processes_are_spawned_whatever_was_set(popen):
    """A `Process` of the module is spawned, whatever start method was set."""
    from sharedtensor.multiprocessing.context import CONTEXTS

    return staticmethod(lambda process: CONTEXTS["spawn"].Process._Popen(process))


@mutant(
    "spawns_until_it_is_asked",
    "API-4",
    replaces="multiprocessing.context.DefaultContext.get_context",
)
def spawns_until_it_is_asked(get_context):
    """While nobody has set or asked for the start method, children are spawned."""

    def get(self, method=None):
        return get_context(
            self, method or self.get_start_method(allow_none=True) or "spawn"
        )

    return get
