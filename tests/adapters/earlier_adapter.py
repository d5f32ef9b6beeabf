"""The adapter of a library that claims little, as it was for the first contract."""

from dataclasses import replace

from sharedtensor_conformance.adapters import numpy_copy

version_1 = replace(numpy_copy.conformance_adapter, adapter_version=1)
