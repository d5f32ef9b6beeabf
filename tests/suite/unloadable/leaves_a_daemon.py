"""A daemon that holds its descriptors is left when its import fails."""

import os
import threading

if os.fork() == 0:
    os.setsid()
    threading.Event().wait()
raise ImportError("half of it is missing")
