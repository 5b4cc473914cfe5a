"""Estimate memory, time and disk usage from a trace: pure functions that do not import torch."""
