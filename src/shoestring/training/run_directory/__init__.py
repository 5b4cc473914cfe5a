"""A run's directory as it is stored: what it contains, its plan and state, and its lock.

`contents.py` is the table of its files: backups, sessions on Kaggle, exports, cleaning and the reference iterate over
it. `directory.py` has the paths, `stored.py` reads and writes plan.json and state.json, `lock.py` keeps other processes
out.

A directory may come from someone else. Links under the names of a run's files are refused before anything is read or
written, every file is read with limits, and a recipe's file that only the directory names is executed if its digest is
known (`trust.py`). Nothing is unpickled.
"""
