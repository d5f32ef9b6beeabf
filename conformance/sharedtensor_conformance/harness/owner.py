"""The main program of an owner: ``python -m sharedtensor_conformance.harness.owner``.

With `--template` it is a template process, from which owners are forked.

Under spawn and forkserver, a child imports this module again before it unpickles its
arguments. At that moment a mutant has to be applied in the child, too.
"""

from sharedtensor_conformance.harness.remote.setting import Setting

if __name__ == "__mp_main__":
    Setting.from_environment().apply_mutant()

if __name__ == "__main__":
    import multiprocessing
    import sys

    from sharedtensor_conformance.harness.remote.actor import owner_main
    from sharedtensor_conformance.harness.supervisor import preloading

    PRELOADED = "sharedtensor_conformance.harness.remote.preloaded"

    def own() -> None:
        """Run the owner, with the environment that it has by then."""
        setting = Setting.from_environment()
        if setting.preload:  # the fork server of this process imports it once, too
            multiprocessing.set_forkserver_preload([PRELOADED])
        owner_main(setting)

    if sys.argv[1:2] == [preloading.TEMPLATE_OPTION]:
        preloading.main(own)
    else:
        own()
