"""One update: its gradient from microbatches, the optimizer's step, and repeating both when they fail.

In go a model, an optimizer, a loss and the microbatches of an update; out comes an `UpdateResult`, or the update is
made again with less memory (`recovery.py`) or a smaller loss scale. `update.py` is one page, which the tracer runs too.

An update is made whole or not at all: gradients are divided by the weight of all its samples, buffers are restored and
random numbers seeded before it is repeated. An error that may have left weights half updated is a `HalfDoneError`, of
which only a checkpoint cures. A handler of an out-of-memory error holds the tensors that failed, so only its message
leaves (`memory.py`).

The engine knows no run's directory, no deadline and no save: that is what `training` adds.
"""
