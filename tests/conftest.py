"""What all tests need: signals as they are where a person starts them, and bytecode.

A shell starts what runs in its background with SIGINT ignored, and nohup(1) does so
with SIGHUP. The processes that the tests start would inherit that.

They start some thousand processes. Where Python is told to write no bytecode, as in
many images of containers, each of them would compile the checkout's modules anew. Each
that imports NumPy would start threads for its linear algebra, which nothing here does.
"""

from __future__ import annotations

import os
import signal
import sys

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.setdefault("OMP_NUM_THREADS", "1")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
