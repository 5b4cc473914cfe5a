"""What every other package uses: errors, settings, numbers with units, files that may be damaged, streams, processes.

In go texts that people type and files of unknown origin; out come typed values (`Settings`, bytes, seconds), or one
error that names all problems, the values seen and what to do (`errors.py`). A file is read here or nowhere: with a
limit on its size and on the depth of its JSON, without following links (`reading.py`).

It imports nothing of Shoestring but itself, and neither torch nor numpy: the command line prints its help, and the
supervisor of a training kills it at its limit, before those are loaded or without them. It knows nothing of recipes,
plans or runs. The exception is `display.py`, through which an answer finds its renderer when it is shown.
"""
