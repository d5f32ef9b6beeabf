"""Names of segments in `/dev/shm`, and who removes them: the strategy `file_system`.

Nobody counts. What a process or a message holds is a lock of the kernel, which goes
with its holder, however that ends:

- A process that has mapped a segment has a shared lock on its file: flock(2) belongs to
  the open file description, and the mapping keeps that, without a descriptor. Forked
  children have the same mapping.
- A message in flight carries one descriptor, of the directory of segments. Its
  description has a lock on one byte for each name in the message (F_OFD_SETLK of
  fcntl(2)). It does not matter that a directory has no bytes.

So whoever gets the exclusive lock of a segment's file, while no message has the byte of
its name, may remove it. A process that drops a segment tries that at once. For those
that were killed, and for lost messages, the keeper of the program does it: a process
without any state, which can be killed, stopped and replaced at any moment.

`keeper` is that process, a script that imports nothing of this package, and what it has
in common with the processes it works for. `program` is their side: how a process
belongs to a program, how it holds names, and how the keeper is started.
"""
