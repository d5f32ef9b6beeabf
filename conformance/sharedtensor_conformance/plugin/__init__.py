"""The pytest plugin: the options, the matrix of cases, running them, recording them.

`hooks` is what pytest loads; ``conftest.py`` of a checkout and the entry point `entry`
of an installed suite both load it.
"""
