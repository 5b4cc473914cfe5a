"""A probe: a few updates of a run, made by the code of training in a process of its own, measured and discarded."""
