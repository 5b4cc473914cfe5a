"""The verb train: from a command to a session, its processes and their supervision."""
