"""Gives pytest the options, fixtures and hooks of the suite (see ``plugin.py``)."""

from sharedtensor_conformance.plugin import *  # noqa: F403
