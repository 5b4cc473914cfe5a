"""Rehearse a script: run it unmodified on simulated GPUs, and say what became of it.

In goes a `RehearsalRequest` (`request.py`): a script, a module, a notebook or a recipe, and a target. `rehearse.py`
runs it in processes of its own (`processes.py`) with the libraries of `planning/simulator`, reads what these observe
(`events.py`), and returns a `Rehearsal` (`rehearsal.py`), in which `private.py` has shortened the paths.
"""
