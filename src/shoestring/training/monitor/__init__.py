"""Monitoring of a run: its event record, samples of memory and GPU load, and the progress display."""
