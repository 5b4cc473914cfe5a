"""What is recorded of a run while it trains: events, progress, samples of memory and load, what limits the speed.

In goes what the steps report; out come lines of `events.jsonl`, progress on standard error, and computed from the
events alone the breakdown of time, speeds and totals that reports show.

Monitoring never stops or changes a run: an event that cannot be written is counted and told at the end, and what is
written elsewhere (`--log`) is written by a process of its own that reads the record (`sinks`). Nothing here imports
torch.
"""
