"""What the kernel does for the processes of the suite; the standard library alone."""
