"""Writes a failing case as a program that needs only the implementation and Python.

`running` runs the case again while `recording` records its events: the requests to each
process, and the check that failed. `story` reads these events. `operations` takes the
operations of the adapter from its source, and `program` writes them with the recorded
values into one program. `running` then executes the program before it is shown.
"""
