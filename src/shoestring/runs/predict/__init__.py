"""The verb predict: answers of a trained model to new inputs, in files, in Python and in a conversation.

In go a `Run` and inputs; out comes one row for each input, in their order, also for one that cannot be used. Inputs are
read one batch at a time, so the memory does not grow with their number (`predictor.py`, `predictions.py`).

A file of rows is completed by the same command after a kill, and never if it is of other weights, data or options:
`digests.py` and `output.py` compare them first. Targets of the data must not change a prediction.
"""
