"""The trainers of transformers and TRL, resumable: the library's loop, with the steps of `training` in its callbacks.

In goes a library's trainer, of a recipe (`library.py`) or of a script (`trainer.surviving`); out comes a run's
directory as the engine's own loop leaves it: events, checkpoints, an exact resume, a session that ends in time.

The library makes the updates, so what depends on private names of it is in `private_parts.py` alone, with the versions
that it was verified for, and what it does in another way than the engine is refused or named, not worked around
silently (`arguments.py`). The libraries are optional: nothing outside of this package and of the recipes imports them.
"""
