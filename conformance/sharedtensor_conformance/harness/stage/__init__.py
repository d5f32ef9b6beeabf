"""The stage: an owner with its peers and their supervisor, from start to end."""
