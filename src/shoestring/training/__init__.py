"""What happens: the loop that trains, and its steps.

Read `loop.py` from top to bottom first. In goes a `SessionRequest` (recipe, settings, run's directory, device, stop);
out comes an `Outcome`, and in the directory checkpoints, weights to use and events. `setup.py` builds a
`TrainingSession`, and `steps.py`, `evaluation_steps.py` and `save_steps.py` are the steps on it, which a library's
trainer calls from its callbacks as well.

    engine      one update, and what repeats it when memory or numbers run out; several processes
    data        which samples an update has, and how they reach the device
    checkpoint  states as sets of files that are complete or absent
    session     deadline, signals, supervisor, lock: one stretch of time on one machine
    monitor     events, progress and what limits the speed

The position of a run is the number of its update and nothing else: order, random numbers and learning rates follow
from it. So no step may keep state that a checkpoint does not have, and none may change the effective batch. The
package never imports `planning`: it trains with the settings that it is given.
"""
