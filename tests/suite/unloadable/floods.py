"""It prints 64 MB that no terminal shows, and raises what none shows either."""

import os

for _ in range(64):
    os.write(1, b"\xff\x1b[2J" * 200_000 + b"\n")
raise RuntimeError("\udcff\x1b[2J\x00" + "x" * (8 << 20) + "\nend")
