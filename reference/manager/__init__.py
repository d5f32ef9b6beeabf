"""The shared-memory manager: who removes the names of `file_system`, and when.

`daemon` is the manager itself, a script of its own; `launch` starts one or reaches one;
`client` is what the rest of the package calls. `daemon` documents the protocol.
"""
