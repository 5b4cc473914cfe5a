"""A run as a measurement of the predictions: a small file that people can publish, and the checks of such a file.

`of_run.py` makes the file's content of a run's plan and events, `file.py` writes and reads it, and `problems.py` says
what is wrong with one: fields, and values that no device can have.
"""
