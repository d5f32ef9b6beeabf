"""The shared-memory manager: who removes the names of `file_system`, and when.

`client` is what the rest of the package calls. `link` is its side of one manager,
`launch` starts one or reaches one, and `daemon` is the manager itself, a script of its
own. This module imports nothing, since the script imports it.

The decisions are in modules without I/O, so that the tests can simulate many processes
and explore the orders in which they act: `messages` says what clients can say,
`accounting` when a name can go, `serving` what a manager does, and `conversation` what
a client does, and how it replaces a manager that was killed.
"""
