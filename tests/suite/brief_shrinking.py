"""A plugin for runs in which a random history fails, however long it is told."""

from sharedtensor_conformance.chapters import history_search

history_search.SHRINK_TIMEOUT = 0.2
