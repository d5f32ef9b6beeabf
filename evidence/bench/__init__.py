"""The benchmark: what sharing tensors costs, for several implementations side by side.

``python -m bench --impl reference --impl torch`` measures in a checkout. Each
implementation runs in its own environment and processes: a *driver*, which is the
owner, and its peers. It is used through its adapter and timed inside these processes.
The controller asks the drivers in turn for one batch of one row, so that a change of
the machine's speed affects all of them. No library that measures functions can do that:
they measure one interpreter at a time.

`rows` defines what is measured. `exchange` is the work of owner and peer, `measuring`
times it, `driver` is the owner's process and the controller's end of it, and `results`
stores and shows the figures.
"""
