"""Writes a failing case as a program that needs only the implementation and Python.

`running` runs the case again while `recording` records its events: the requests to each
process, and the check that failed. `story` reads these events, and `translation` turns
them into lines of the program's processes. `operations` takes the operations of the
adapter from its source, and `program` assembles the program. `running` then executes
the program before it is shown.
"""
