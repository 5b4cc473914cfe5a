"""One stretch of wall-clock: how long it may last, what ends it, and what it cost.

In go the limit of the session, signals and the sizes of what must still be written; out comes, whenever the loop asks,
whether to go on, save or stop (`deadline.py`, `stop.py`), and at the end an `Outcome` and a line in the ledger. Every
loop of training polls, also those of evaluations and of reading data (`polling.py`).

A session ends by itself, saved, before its limit. A signal only sets a flag, which the next poll reads: nothing is
interrupted in the middle of a save. This package reads the clock and writes the ledger; it knows neither the model nor
what a checkpoint contains.
"""
