"""What runs on Kaggle: the script of a session, and the file in which it tells how the session has ended.

In goes a configuration as JSON (`script.py` lists its keys); out comes the source of a script kernel, and after the
session its output with `shoestring-session.json`, which `session_file.py` reads on the laptop.

`program/` runs before Shoestring is installed there, so it uses the standard library alone, and its modules are joined
into one file. `leaving.py` runs after that: it is the part which has to know checkpoints.
"""
