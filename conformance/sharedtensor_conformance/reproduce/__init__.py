"""Writes a failing case as a program that needs only the implementation and Python.

The case is run once more while somebody listens (`recording`), which gives its story:
who was asked for what, and which check failed (`story`). The operations of the adapter
are read from its source (`operations`) and written, with the story's values in their
places, into one program (`program`), which is executed before it is shown (`running`).
"""
