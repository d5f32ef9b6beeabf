"""The tests, one module each chapter of the spec, with their stories and models.

A module ``test_<chapter>.py`` has the tests of the chapter's clauses. What several
chapters say about their tensors is in `stories`; `fault_table`,
`aliasing_histories` and `lifetime_histories` run the table and the random histories of
some of them.
"""
