"""The supervisor of the processes of a stage, and the template of their owners."""
