"""Compute the values of the commands of `cases.py`.

python -m benchmarks.claims --json OUT          # write them
python -m benchmarks.claims --check [NAME ...]  # compare them, or those of some commands, with the committed ones
"""

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.claims.cases import CASES
from benchmarks.claims.comparison import TOLERANCES, differences
from benchmarks.claims.compute import compute


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--processes", type=int, default=2, help="recipes that are computed at the same time")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - CASES.keys()):
        parser.error(f"unknown: {', '.join(unknown)}; benchmarks/claims/cases.py has the names")
    cases = {name: CASES[name] for name in options.names} or CASES
    values = compute(cases, options.processes)
    if options.json:
        options.json.write_text(
            json.dumps(
                {
                    "versions": {name: version(name) for name in ("torch", "transformers")},
                    "tolerances": TOLERANCES,
                    "cases": {name: {"command": cases[name].command, **values[name]} for name in cases},
                },
                indent=1,
            )
            + "\n"
        )
    if not options.check:
        return 0
    lines = differences(values)
    print(*lines, sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
