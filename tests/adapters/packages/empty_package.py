"""A package without any function that ``new-adapter`` takes it to have."""
