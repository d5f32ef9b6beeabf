"""What all tests need: signals as they are where a person starts them.

A shell starts what runs in its background with SIGINT ignored, and nohup(1) does so
with SIGHUP. The processes that the tests start would inherit that.
"""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
