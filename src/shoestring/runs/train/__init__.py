"""The verb train: from a command to a session, its processes and their supervision.

In goes a `LaunchRequest`; out comes an `Outcome`. `launch.py` locks the directory, plans a new run or opens the stored
plan; `session.py` makes a `SessionRequest` of it for `training.loop`. With several GPUs, `agent.py` starts a process
for each (`rank.py`), which find each other in `meeting.py`, and starts all of them again if one dies.

The process that a person has started is only a supervisor (`supervisor.py`): it imports little and trains nothing, so
it can end a session in time whatever the training process does. When it is killed, its children end as well, and the
lock is free.
"""
