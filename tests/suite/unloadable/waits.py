"""Its import ends badly, but only when it is told to go on."""

import os
from pathlib import Path

Path(os.environ["SANDBOX"], "goes-on").open().close()
raise ImportError("it was told to go on")
