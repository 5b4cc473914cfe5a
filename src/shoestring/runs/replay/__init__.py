"""The verb replay: one update of a run, made again and watched.

In go a run and the number of an update; out comes a `Replay` with its samples, losses, gradients, activations and what
is not finite. It begins with the nearest checkpoint before the update, and makes the updates between by the engine
itself, so that the bits are those of the run; the hooks that watch (`replaying.py`) change none.

The run's directory is only read.
"""
