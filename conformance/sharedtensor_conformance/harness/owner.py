"""The main program of an owner: ``python -m sharedtensor_conformance.harness.owner``.

Under spawn and forkserver a child imports this module again before it unpickles its
arguments; that is the moment at which a mutant has to act there too.
"""

from sharedtensor_conformance.harness.setting import Setting

if __name__ == "__mp_main__":
    Setting.from_environment().apply_mutant()

if __name__ == "__main__":
    from sharedtensor_conformance.harness.actor import owner_main

    owner_main()
