"""Runs the command for ``python -m sharedtensor_conformance.cli``."""

import sys

from sharedtensor_conformance.cli import main

sys.exit(main())
