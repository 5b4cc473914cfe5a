"""Out of memory at every place: the n-th request for device memory fails, for every n of a piece of work.

As SQLite does with malloc: what fails is counted, not chosen. `injection.py` lets requests fail, `sessions.py` says
what the result has to be, `scenarios.py` is the table of what is tried. `benchmarks/lab/out_of_memory.py` tries all.
"""
