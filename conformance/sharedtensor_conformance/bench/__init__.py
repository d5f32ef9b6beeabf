"""The benchmark: what sharing costs, side by side, on one machine, in one run.

Each implementation runs in processes of its own (a *driver*, which is the owner, and
its peers), in its own environment, and is used through its adapter. What is timed is
timed inside these processes. The controller asks the drivers in turn, a batch of one
row at a time, so whatever the machine does meanwhile happens to all of them.

`rows` says what is measured, `exchange` is what owner and peer do, `measuring` times
it, `driver` answers the controller, `controller` asks, `results` keeps the figures,
`table` and `plot` show them, `comparison` sets two runs beside one another, and
`joblib_memmap` is a driver for what joblib does.
"""
