"""Writes a failing case as a program that needs only the implementation and Python.

`running` runs the case again while `recording` records its events: the requests to each
process, and their answers. `steps` writes them as lines. `copying` copies the
operations of the adapter and what else runs in the processes, which `sources` reads.
`program` puts them and the `runtime` together. `running` then executes the program
before it is shown.
"""
