"""Reports: what a run found, how it is judged, and the forms in which it is shown.

`records` defines the file; `verdicts`, `judge`, `expectations`, `gate` and `diff`
decide what it means; `terminal`, `markdown` and `junit` render it.
"""
