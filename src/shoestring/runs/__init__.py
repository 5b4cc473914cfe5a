"""A run as a value, and the verbs over it: begin or continue it, evaluate, predict, export, replay; check a machine.

In go the path of a run's directory or a recipe, options and settings; out come a trained run, metrics, rows, folders.
`run.py` opens a run and says what is verified at which step, `model.py` loads its weights, and each verb has a package
or a module of its name. This is the one place that knows both halves: `planning`, which decides, and `training`.

A verb that uses a trained model never changes the run's directory, except by an export into it. Code that only the
directory names is executed if it is trusted, and otherwise not at all. Nothing here prints: verbs return values, which
`answers` shows.
"""
