"""One of two GPUs runs out of memory: all halve the microbatch, or all start again, and none waits for ever."""

import json

import pytest

from shoestring.training.monitor.events import read
from tests.lab.ranks.out_of_memory import train_failing
from tests.sessions import final_bits

VALUES = {"logical_shards": 4, "micro_batch": 4, "save_every_updates": 2, "save_every_seconds": 1e4}
REPEATED, RETURNED, RESTARTED = "repeated", "back to the checkpoint", "started again"
CASES = [
    ("ddp", "forward", REPEATED),
    ("ddp", "backward", REPEATED),
    ("ddp", "exchange", RESTARTED),
    ("ddp", "clipping", RETURNED),
    ("ddp", "step", RETURNED),
    ("ddp", "evaluation", REPEATED),
    ("zero1", "backward", REPEATED),
    ("zero1", "clipping", RETURNED),
    ("zero3", "forward", RESTARTED),
    ("zero3", "block", RESTARTED),
    ("zero3", "backward", RESTARTED),
    ("zero3", "clipping", RESTARTED),
    ("zero3", "evaluation", RESTARTED),
]
QUICK = [("ddp", "forward"), ("ddp", "exchange"), ("ddp", "clipping"), ("zero3", "block")]


@pytest.fixture(scope="module")
def driver(ranks_on):
    return ranks_on("kaggle-t4x2", PYTORCH_NO_CUDA_MEMORY_CACHING="1")


def of_kind(run, kind):
    return [event for event in read(run / "events.jsonl") if event["event"] == kind]


@pytest.mark.parametrize(
    ("sharding", "place", "outcome"),
    [pytest.param(*case, marks=() if case[:2] in QUICK else pytest.mark.slow) for case in CASES],
)
def test_one_gpu_runs_out_of_memory(driver, tmp_path, sharding, place, outcome):
    run, values = tmp_path / "run", VALUES | {"sharding": sharding}
    at = 1 if place == "evaluation" else 6  # of two losses in each update on each rank
    failing = {"run": str(run), "values": values, "place": place, "at": at, "failing_ranks": [1]}
    answers = driver.call(2, train_failing, **failing, seconds=60)
    if outcome == RESTARTED:
        assert answers.statuses[1] == 76 and answers.statuses[0] in (75, 76), answers.output[-3000:]
        answers = driver.call(2, train_failing, **failing | {"failing_ranks": []}, seconds=60)
    assert answers.statuses == [0, 0] and answers.values == [6, 6], answers.output[-3000:]
    (event,) = of_kind(run, "oom")
    assert "CUDA error: out of memory" in event["failure"]
    assert ("back_to" in event) == (outcome == RETURNED) and ("restart" in event) == (outcome == RESTARTED)
    assert {progress["samples"] / progress["updates"] for progress in of_kind(run, "progress")} <= {16, 12.5, 2}
    assert json.loads((run / "state.json").read_text())["status"] == "finished"
    if outcome == REPEATED and place != "evaluation":
        # As one process whose memory is short in the same update.
        alone = failing | {"run": str(tmp_path / "alone"), "at": 2 * at - 1, "failing_ranks": [0], "place": "forward"}
        driver.run(1, train_failing, **alone)
        assert event["done"] == "microbatch 2"
        expected, actual = final_bits(tmp_path / "alone"), final_bits(run)
        assert actual == expected


@pytest.mark.slow
def test_all_gpus_run_out_of_memory_in_the_same_collective_work(driver, tmp_path):
    """FSDP2 is brought back, and the update is repeated, with the same bits wherever it was interrupted."""
    checkpoints = {}
    for place in ("forward", "block", "backward"):
        run = tmp_path / place
        failing = {"values": VALUES | {"sharding": "zero3"}, "place": place, "at": 6, "failing_ranks": [0, 1]}
        assert driver.run(2, train_failing, run=str(run), **failing) == [6, 6]
        (event,) = of_kind(run, "oom")
        assert event["done"] == "microbatch 2" and "restart" not in event and "back_to" not in event
        newest = max((run / "checkpoints").glob("update-*"))
        checkpoints[place] = {file.name: file.read_bytes() for file in newest.glob("*.safetensors")}
    assert checkpoints["block"] == checkpoints["forward"] == checkpoints["backward"]
