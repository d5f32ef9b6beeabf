"""The ledger: what the processes of a stage hold, and what was left behind."""
