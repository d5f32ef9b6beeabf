"""The known deviations of implementations, as data: one TOML file for each.

The folder ``causes`` has a program for each cause, in plain code of the implementation
that knows nothing of this suite. It prints one line and exits with 0 where the
deviation shows, and exits with 1 where it has gone. The module ``programs`` finds them,
also those that stand once for several libraries.
"""
