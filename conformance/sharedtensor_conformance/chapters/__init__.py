"""The conformance tests, one module for each chapter of the specification.

A module ``test_<chapter>.py`` contains the tests of the clauses of its chapter. A few
modules test clauses of several chapters together: `test_bundles`, `test_histories`,
`test_ledger` and `test_storages`.

A module ``<topic>_actions.py`` has the functions that tests let an actor execute, by
``owner.run(function, ...)``. It imports no pytest, since processes of cases import it.
`pools` and `groups` use such functions, and `worker_tasks` are those of their workers.

The other modules contain what the tests share. `shared_steps` and `bundle_checks` have
steps and checks for all chapters, and `interruptions` interrupts calls. `exhaustion`
takes resources from a process, and `system_changes` changes the system for a stage: the
supervisor executes `system_actions`. `confinement` refuses system calls. `fault_table`
lists the cells of the fault table, and `fault_round` runs one cell.
`random_histories` runs random histories and compares them with `history_model`.
"""
