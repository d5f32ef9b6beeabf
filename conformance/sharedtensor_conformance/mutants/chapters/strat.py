"""Mutants of the sharing strategies."""

from sharedtensor_conformance.mutants.registry import mutant


@mutant("names_one_strategy", "STRAT-1")
def names_one_strategy(steps):
    """The set of strategies does not have the default in it."""
    from sharedtensor import multiprocessing

    multiprocessing.get_all_sharing_strategies = lambda: {"file_system"}


@mutant("sets_a_strategy_once", "STRAT-2")
def sets_a_strategy_once(steps):
    """A strategy that was set cannot be changed to another one."""
    original = steps.set_strategy
    seen = []

    def set_strategy(name):
        seen.append(name)
        original(seen[0])

    steps.set_strategy = set_strategy


@mutant("sets_before_it_refuses", "STRAT-3")
def sets_before_it_refuses(steps):
    """An unknown strategy is refused, and the current one is lost all the same."""
    from sharedtensor import strategies

    original = strategies.find_strategy

    def find_strategy(name):
        if name not in strategies.STRATEGIES:
            steps.set_strategy("file_system")
        return original(name)

    strategies.find_strategy = find_strategy


@mutant("follows_the_current_strategy", "STRAT-4", "STRAT-5")
def follows_the_current_strategy(steps):
    """A storage of another strategy than the current one is moved again."""
    original = steps.share_storage

    def share_storage(storage):
        segment = storage.segment
        if segment and segment.strategy.name != steps.current_strategy():
            storage.segment = None
        original(storage)

    steps.share_storage = share_storage


@mutant("shares_again_after_a_change", "STRAT-4")
def shares_again_after_a_change(steps):
    """`share_memory_()`, and it alone, moves a storage of another strategy."""
    original = steps.share_tensor

    def share_tensor(tensor):
        segment = tensor.storage.segment
        if segment and segment.strategy.name != steps.current_strategy():
            tensor.storage.segment = None
        original(tensor)

    steps.share_tensor = share_tensor


@mutant("copies_what_is_foreign", "STRAT-5")
def copies_what_is_foreign(steps):
    """A storage of another strategy than the receiver's arrives as a copy."""
    original = steps.rebuild_storage

    def rebuild_storage(storage_class, handle):
        storage = original(storage_class, handle)
        return storage if handle[0] == steps.current_strategy() else storage.clone()

    steps.rebuild_storage = rebuild_storage


@mutant("defaults_to_file_system", "STRAT-6")
def defaults_to_file_system(steps):
    """A fresh process has the strategy `file_system`."""
    steps.strategy = "file_system"
