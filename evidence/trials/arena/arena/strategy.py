"""Which kind of arena new storages are put into."""
from .store import state

_ALL = {"file_descriptor", "file_system"}


def get_all_sharing_strategies():
    return set(_ALL)


def get_sharing_strategy():
    return state.strategy


def set_sharing_strategy(name):
    if not isinstance(name, str) or name not in _ALL:
        raise ValueError(f"{name!r} is no sharing strategy; there are {', '.join(sorted(_ALL))}")
    state.strategy = name
