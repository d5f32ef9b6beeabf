"""Writes a failing case as a program that needs only the implementation and Python.

`running` runs the case again while `recording` records its events: the requests to each
process, and the check that failed. `events` reads them, and `translation` turns them
into lines of the program's processes. `operations` takes the operations of the adapter
from its source, `failure_steps` adds the steps that show the failure, and `program`
assembles the program. `shortening`, `loops` and `functions` make it shorter. `running`
then executes the program before it is shown.
"""
