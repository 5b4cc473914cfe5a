"""Predicted memory of samples that differ in length beside what PyTorch's allocator takes: one case of
`benchmarks.lab.memory.lengths`."""

from contextlib import ExitStack

from benchmarks.lab.memory.lengths import configurations
from benchmarks.lab.memory.predictions import MEMORY_BYTES
from benchmarks.lab.memory.processes import started


def test_growing_lengths_reserve_what_is_predicted(tmp_path):
    items = configurations(None, ["gpt2"], ["ascending"])
    configuration = next(item for name, _, item in items if name == "lognormal, sigma 0.6")
    with ExitStack() as stack:
        sides = [
            stack.enter_context(started(side, on="kaggle-t4x2", memory_bytes=MEMORY_BYTES, log=tmp_path / side))
            for side in ("measuring", "estimating")
        ]
        measured, estimated = (side.ask(configuration) for side in sides)
    assert measured.get("error") is None and estimated.get("error") is None
    # Samples of one length reserve a tenth more than they take.
    assert measured["reserved"] > 1.5 * measured["allocated"]
    assert abs(estimated["reserved"]["value"] / measured["reserved"] - 1) < 0.05
    assert estimated["allocated"]["value"] <= measured["allocated"] * 1.01
    assert estimated["reserved"]["high"] > measured["reserved"]
