"""A case: what a test declares, checks and waits for, and how it can end."""
