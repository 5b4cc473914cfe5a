"""Proposals with their costs: changes to the training result or the requested settings, which a plan never makes.

`choice.py` has the order in which they are traced, until the budget of `budget.py` is spent.
"""
