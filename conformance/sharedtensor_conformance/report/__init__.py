"""Reads, writes, judges and shows the reports of runs.

`records` defines the file. `verdicts`, `judge`, `expectations`, `gate` and `diff`
evaluate it. `terminal`, `page`, `markdown`, `junit` and `badge` show it.
"""
