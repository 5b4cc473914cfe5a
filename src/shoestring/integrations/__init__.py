"""Integrations with other libraries' trainers: a deadline, crash-safe checkpoints, exact resume and a record."""
