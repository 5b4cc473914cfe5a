"""What will happen: whether a run fits, which settings are the fastest that do, for how long, in how many sessions.

In go a loaded recipe, a target and the settings that are fixed; out comes a `Plan` (`planner.py`), an `Estimate` or an
`InferencePlan`: the numbers with their range and parts, a reason for each choice, and proposals that would change what
is learnt, which a plan never takes by itself.

The order is: trace one update of each candidate (`trace`), estimate memory and time from the traces (`estimate`),
search (`search.py`, `gpus.py`), then schedule and explain the winner. Only a trace runs the recipe, in a child process.

Planning needs no GPU, writes no run and trains nothing. It never imports `training`; what both count, such as the disk
space of a run, is in `base/run_limits.py`. What is unknown is reported as unknown, and never counted as zero.
"""
