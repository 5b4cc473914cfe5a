"""The verb check: whether this machine can train, and whether the plan of a recipe is right here.

In go a recipe and a target, or neither; out comes a `CheckResult` of findings (`finding.py`): passed, a warning with
what to do, or failed. `facts.py` and `collect.py` read the machine once, and pure functions judge what was read. A
trial (`attempts.py`, `child.py`) makes a few updates in a process of its own, because a GPU may not survive it.

`probe` measures the first updates of a run before it trains, and `rates` the machine itself. Nothing is left behind but
the file that was asked for. A check that cannot be made is said to be so; it does not pass.
"""
