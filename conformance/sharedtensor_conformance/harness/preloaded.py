"""Imports the implementation as a side effect: what a fork server preloads.

`multiprocessing.set_forkserver_preload` takes names of modules; an owner names this one
where its adapter declares `preload`.
"""

from contextlib import suppress

from sharedtensor_conformance.harness.setting import Setting

with suppress(Exception):  # the children fail in the same way, and are heard
    Setting.from_environment().operations()
