"""The benchmark: measures what sharing tensors costs, for several implementations.

Each implementation runs in its own environment and processes: a *driver*, which is the
owner, and its peers. It is used through its adapter and timed inside these processes.
The controller asks the drivers in turn for one batch of one row, so that a change of
the machine's speed affects all of them.

`rows` defines what is measured. `exchange` is the work of owner and peer, `measuring`
times it, `driver` answers the controller, `controller` runs the drivers, `results`
stores the figures, `table` shows them, and `comparison` compares two runs.
`joblib_memmap` is a driver that shares arrays as joblib does.
"""
