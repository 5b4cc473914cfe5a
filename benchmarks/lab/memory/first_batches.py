"""Compare reserved memory for each length that the very first microbatch may have, on a simulated GPU and estimated.

    python -m benchmarks.lab.memory.first_batches ID [ID ...]

An estimate expects the median of these lengths by their probability (`planning/estimate/memory.py`), and
`predictions.py` measures equal microbatches. Whether that explains a row's error is shown here: then the estimate of
each length is what the allocator reserves with it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.lab.memory.configurations import Configuration, configurations
from benchmarks.lab.memory.estimating import open_tracer
from benchmarks.lab.memory.measuring import MICROBATCHES, without_initial_values
from benchmarks.lab.memory.predictions import MEMORY_BYTES
from benchmarks.lab.memory.processes import ROOT, started

from shoestring.base.units import MIB
from shoestring.hardware.targets import find as find_target
from shoestring.planning.candidates import UNTRACED
from shoestring.planning.estimate.memory import first_batch_probabilities
from shoestring.planning.estimate.replay import replay_unlimited
from shoestring.planning.estimate.requests import (
    accumulate_in_place,
    repeat_second_update,
    requests,
    with_smaller_first_batch,
)


def estimates(item: Configuration) -> list[tuple[float, float, int]]:
    """Return each length as a share of the others, its probability and the estimated bytes that are reserved."""
    device, settings = find_target(item.on).device, item.settings
    with (
        tempfile.TemporaryDirectory() as folder,
        without_initial_values(),
        open_tracer(item.load(Path(folder))) as tracer,
    ):
        traced, gpus = settings.replace(**UNTRACED), settings.gpus or 1
        trace = accumulate_in_place(tracer.trace(traced, accumulate=MICROBATCHES, device=device, gpus=gpus))
    all_requests = requests(repeat_second_update(trace), device)
    rows = []
    for share, probability in first_batch_probabilities(trace).items():
        usage = replay_unlimited(with_smaller_first_batch(all_requests, trace, share), settings.allocator or "segments")
        rows.append((share, probability, usage.reserved))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="+", metavar="ID")
    parser.add_argument("--estimate", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    items = {item.id: item for item in configurations()}
    for name in options.names:
        if options.estimate:
            print(json.dumps(estimates(items[name])))
            continue
        command = [sys.executable, "-m", "benchmarks.lab.memory.first_batches", "--estimate", name]
        variables = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "CUDA_VISIBLE_DEVICES": ""}
        output = subprocess.run(command, env=variables, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
        with started("measuring", on=items[name].on, memory_bytes=MEMORY_BYTES) as measuring:
            for share, probability, reserved in json.loads(output.splitlines()[-1]):
                answer = measuring.ask(replace(items[name], first_share=share))
                measured = answer.get("reserved", answer.get("error"))
                print(
                    f"{name}, first microbatch {share:.3f} of the length, probability {probability:.2f}: "
                    f"estimated {reserved / MIB:,.0f} MiB, "
                    + (f"measured {measured / MIB:,.0f} MiB" if isinstance(measured, int) else f"error: {measured}"),
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
