"""Looks at an adapter before it is judged: what it declares, and how it answers."""
