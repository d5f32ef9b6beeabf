"""Lets ``python -m sharedtensor_conformance.cli`` be the command, too."""

import sys

from sharedtensor_conformance.cli import main

sys.exit(main())
