"""The command line: options in, answers out.

In goes what a person has typed, with a `--config` file for what was left out (`config.py`); out comes the answer on
standard output, as text or JSON, messages on standard error, and an exit status (`output.py`). `commands` has the
commands in modules with the names of those of `api`.

A command calls one function of `api` and computes nothing itself: the import contract forbids it to import what lies
below. A module that is imported at the start of `shoestring --help` imports neither torch nor numpy.
"""
