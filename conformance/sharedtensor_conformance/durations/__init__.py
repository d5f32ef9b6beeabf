"""How long cases took, as data: one JSON file for each recorded implementation.

``ci/durations.py`` makes them of reports; `plugin.durations` reads them.
"""
