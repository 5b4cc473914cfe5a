"""A run on Kaggle, session after session, from a machine without a GPU.

In goes a recipe with options and a directory; out comes the finished run in it. `starting.py` checks and begins,
`chain.py` goes on until the run is finished, a session at a time: `pushing.py` sends one, `polling.py` waits for it,
`fetching.py` brings its output. `kernel/` is what runs there; `following.py` only looks.

The process on the laptop may be killed at any instant: its state is in `chain.json` before each step, and what Kaggle
says, not what was intended, decides what has happened. A session spends quota that nobody gives back, so one is pushed
only when no other of the chain runs, and a push without an answer is looked for before it is repeated.
"""
