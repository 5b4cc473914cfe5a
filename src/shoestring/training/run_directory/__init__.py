"""A run's directory as it is stored: what it contains, its plan and state, and its lock."""
