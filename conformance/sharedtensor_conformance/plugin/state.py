"""The keys of the objects that the plugin stores in pytest's configuration."""

from __future__ import annotations

import pytest

from sharedtensor_conformance.plugin.matrix import Selection
from sharedtensor_conformance.plugin.recorder import Recorder
from sharedtensor_conformance.plugin.runner import Runner

RUNNER = pytest.StashKey[Runner]()
RECORDER = pytest.StashKey[Recorder]()
SELECTION = pytest.StashKey[Selection]()
