"""Mutants: the reference with one fault each, to show that the suite detects the fault.

`registry` has the mutants by name, `chapters` defines them, and `run` runs the suite on
them.
"""
