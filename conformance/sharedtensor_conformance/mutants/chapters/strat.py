"""Mutants of the sharing strategies."""

import resource
import threading

from sharedtensor_conformance.mutants.registry import mutant


@mutant(
    "names_one_strategy",
    "STRAT-1",
    replaces="multiprocessing.get_all_sharing_strategies",
)
def names_one_strategy(get_all_sharing_strategies):
    """The set of strategies does not have the default in it."""
    return lambda: {"file_system"}


@mutant("lists_what_the_system_lacks", "STRAT-1", replaces="strategies.STRATEGIES")
def lists_what_the_system_lacks(known):
    """There is a strategy that can be set, and under which nothing can be shared."""
    from sharedtensor import ResourceError, strategies

    class Anonymous(strategies.FileDescriptor):
        """Segments of a kind that no system has."""

        name = "anonymous"

        def allocate(self, segment, source, then):
            raise ResourceError(f"there is no segment of {segment.nbytes} bytes")

    return known | {Anonymous.name: Anonymous()}


@mutant(
    "hands_out_its_set_of_strategies",
    "STRAT-1",
    replaces="multiprocessing.get_all_sharing_strategies",
)
def hands_out_its_set_of_strategies(get_all_sharing_strategies):
    """Whoever asks for the strategies gets one and the same set."""
    only = get_all_sharing_strategies()
    return lambda: only


@mutant("sets_a_strategy_once", "STRAT-2", replaces="protocol.set_strategy")
def sets_a_strategy_once(set_strategy):
    """A strategy that was set cannot be changed to another one."""
    seen = []

    def set_once(name):
        seen.append(name)
        set_strategy(seen[0])

    return set_once


@mutant("sets_before_it_refuses", "STRAT-3", replaces="strategies.find_strategy")
def sets_before_it_refuses(find_strategy):
    """An unknown strategy is refused, and the current one is lost all the same."""
    from sharedtensor import protocol, strategies

    def set_and_find(name):
        if name not in strategies.STRATEGIES:
            protocol.set_strategy("file_system")
        return find_strategy(name)

    return set_and_find


@mutant(
    "follows_the_current_strategy",
    "STRAT-4",
    "STRAT-5",
    replaces="protocol.share_storage",
)
def follows_the_current_strategy(share_storage):
    """A storage of another strategy than the current one is moved again."""
    from sharedtensor import state

    def share(storage):
        segment = storage.segment
        if segment and segment.strategy.name != state.strategy:
            storage.segment = None
        share_storage(storage)

    return share


@mutant(
    "shares_again_after_a_change",
    "STRAT-4",
    replaces="tensors.Tensor.share_memory_",
)
def shares_again_after_a_change(share_memory):
    """`share_memory_()`, and it alone, moves a storage of another strategy."""
    from sharedtensor import state

    def share(self):
        segment = self.storage.segment
        if segment and segment.strategy.name != state.strategy:
            self.storage.segment = None
        return share_memory(self)

    return share


@mutant("copies_what_is_foreign", "STRAT-5", replaces="protocol.rebuild_storage")
def copies_what_is_foreign(rebuild_storage):
    """A storage of another strategy than the receiver's arrives as a copy."""
    from sharedtensor import state

    def rebuild(segment, *part):
        storage = rebuild_storage(segment, *part)
        return storage if segment.strategy.name == state.strategy else storage.clone()

    return rebuild


@mutant("defaults_to_file_system", "STRAT-6", replaces="state.strategy")
def defaults_to_file_system(strategy):
    """A fresh process has the strategy `file_system`."""
    return "file_system"


@mutant("defaults_by_the_limit", "STRAT-6", replaces="state.strategy")
def defaults_by_the_limit(strategy):
    """A program that may have few descriptors has the strategy `file_system`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return strategy if soft >= 1024 else "file_system"


@mutant(
    "each_thread_has_a_strategy",
    "STRAT-2",
    replaces=("protocol.set_strategy", "multiprocessing.get_sharing_strategy"),
)
def each_thread_has_a_strategy(set_strategy, get_sharing_strategy):
    """A strategy that one thread has set is not the current one of the others."""
    own = threading.local()

    def set_own(name):
        own.name = name
        set_strategy(name)

    return set_own, lambda: getattr(own, "name", "file_descriptor")
