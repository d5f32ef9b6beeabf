"""Its process dies while it is imported."""

import os

os.abort()
