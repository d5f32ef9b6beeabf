"""Its import never ends, and nothing that can be ignored ends it."""

import signal
import threading

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
threading.Event().wait()
