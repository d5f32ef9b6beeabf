"""Mutants: the reference with one fault each, to show that the suite can see it.

`registry` knows them, `chapters` has them, and `run` judges the suite by them.
"""
