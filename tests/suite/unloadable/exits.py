"""It exits while it is imported."""

import sys

sys.exit("no licence was found")
