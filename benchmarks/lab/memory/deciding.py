"""Plan configurations for a target: a process that answers questions, one JSON on each line.

    CUDA_VISIBLE_DEVICES= python -m benchmarks.lab.memory.deciding < QUESTIONS > ANSWERS

A question contains `configuration`, whose microbatch is left to the plan. An answer contains the `plan`'s settings;
`fixed`, these with the configuration's checkpointing; and `largest`, the largest microbatch that is predicted to fit
with them, with the `next` larger ones, which are not, and the `first_shares` of the very first microbatch that the plan
reckons with; or `error`.
"""

import tempfile
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.lab.memory.configurations import Configuration
from benchmarks.lab.memory.estimating import open_tracer
from benchmarks.lab.memory.measuring import without_initial_values
from benchmarks.lab.memory.serving import serve

from shoestring.base.errors import ShoestringError
from shoestring.base.settings import Settings
from shoestring.hardware.targets import find as find_target
from shoestring.planning.candidates import Candidates
from shoestring.planning.estimate.memory import first_batch_probabilities
from shoestring.planning.micro_batch import find_largest_that_fits
from shoestring.planning.planner import plan_with
from shoestring.planning.search import micro_batch_sizes

EFFECTIVE_BATCH = 1024
"""Large enough that memory limits the microbatch."""


def decide(configuration: Configuration) -> dict[str, Any]:
    """Return what a plan decides about a configuration."""
    target, wanted = find_target(configuration.on), configuration.settings
    requested = Settings(precision=wanted.precision)
    with tempfile.TemporaryDirectory() as folder:
        loaded = configuration.load(Path(folder), EFFECTIVE_BATCH)
        with open_tracer(loaded) as tracer:
            plan = plan_with(tracer, loaded, target, requested, thorough=False, usd_per_hour=None, calibration=None)
            fixed = plan.settings.replace(micro_batch=None, packing="no", checkpointing=wanted.checkpointing)
            candidates = Candidates(tracer, loaded, target)
            return {
                "plan": plan.settings.json(),
                "verdict": plan.verdict,
                "fixed": fixed.json(),
                **_boundary(candidates, fixed),
            }


def _boundary(candidates: Candidates, fixed: Settings) -> dict[str, Any]:
    """Return the largest microbatch that fits and the next three that the search would consider; 0 if none fits."""
    sizes = micro_batch_sizes(candidates, fixed)
    largest = find_largest_that_fits(candidates, fixed, sizes).largest
    size = 0 if largest is None else largest.settings.micro_batch or 0
    # The search stops where a larger microbatch would gain little time.
    for larger in (other for other in sizes if other > size):
        if not candidates.evaluate(fixed.replace(micro_batch=larger)).fits:
            break
        size = larger
    trace = candidates.evaluate(fixed.replace(micro_batch=size or sizes[0])).trace
    return {
        "largest": size,
        "next": list(islice((other for other in sizes if other > size), 3)),
        "first_shares": sorted(first_batch_probabilities(trace), reverse=True),
    }


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return decide(Configuration.from_json(question["configuration"]))
    except ShoestringError as error:
        return {"error": "; ".join([error.message, *error.problems])[:1000]}


def main() -> int:
    with without_initial_values():  # in the processes that trace as well, which are forked from this one
        return serve(answer)


if __name__ == "__main__":
    raise SystemExit(main())
