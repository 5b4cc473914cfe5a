"""The machines that a run is planned for and runs on: facts about GPUs and platforms, and the probing of this machine.

In goes a target's name, this machine, or a file of measured rates; out comes a `Target`: a device with its memory and
rates, the number of GPUs, and the platform's limits on hours, quota, disk and host memory.

A fact is a row of a table with the source that it was read from or measured with (`catalog.py`, `images.py`,
`prices.py`); a number without a source does not belong here. The package does not import torch: planning for a GPU
works on machines that have neither. What a fact means for a prediction is decided in `planning/estimate`.
"""
