"""The keys of the objects that the plugin stores in pytest's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sharedtensor_conformance.adapter import Implementation
from sharedtensor_conformance.plugin.matrix import Selection

if TYPE_CHECKING:  # these two use the plan, which is made from what is stored here
    from sharedtensor_conformance.plugin.recorder import Recorder
    from sharedtensor_conformance.plugin.runner import Runner

IMPLEMENTATION = pytest.StashKey[Implementation]()
SELECTION = pytest.StashKey[Selection]()
RUNNER: pytest.StashKey[Runner] = pytest.StashKey()
RECORDER: pytest.StashKey[Recorder] = pytest.StashKey()
