"""Following a run from outside: its directory is only read."""
