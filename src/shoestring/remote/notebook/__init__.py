"""Notebooks that check, plan, train and report on Kaggle or Colab, for people who click.

In go a recipe, a target and options; out come `notebook.ipynb` and `kernel-metadata.json` (`writing.py`, `cells.py`),
with the wheel of this copy of Shoestring in the first cell (`carried.py`). In the session the cells call the public
verbs and the functions of `session.py`: where the run is, and how long training may take.

A cell contains nothing that a person could not type, so that it can be changed; a notebook carries no key, and a run
that an attached output brings is copied without links or code.
"""
