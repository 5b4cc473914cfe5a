"""The numbers of plans and estimates in the documentation: the commands, their values, and how pages contain them.

`cases.py` has the commands by name. `python -m benchmarks.claims --json OUT` executes them and writes their values
(`benchmarks/results/claims.json`), from which `benchmarks/tables` writes the numbers on the pages.
"""
