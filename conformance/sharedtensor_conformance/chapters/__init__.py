"""The tests, one module each chapter of the spec, with their stories and models.

A module ``test_<chapter>.py`` has the tests of the chapter's clauses. What several
chapters say about their tensors is in `stories`; `fault_table` and `histories` are the
models behind the chapters that run a table and random histories.
"""
