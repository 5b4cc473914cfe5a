"""Processes that train together on simulated GPUs, over NCCL, with real values."""
