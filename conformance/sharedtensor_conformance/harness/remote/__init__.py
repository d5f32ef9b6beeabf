"""Remote calls: the program of an actor, and an actor as a test sees it."""
