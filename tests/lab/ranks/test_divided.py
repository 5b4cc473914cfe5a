"""zero2 and zero3: weights divided among GPUs by FSDP2 over NCCL, compared with replicas and with the CPU."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from shoestring.training.checkpoint.sections import read_sections
from shoestring.training.monitor.events import read
from tests.invariants.test_sharded import Network
from tests.lab.ranks import training
from tests.sessions import light_bits

VALUES = {"logical_shards": 4, "micro_batch": 3, "save_every_updates": 3, "ema": 0.5}
DIVIDED = ("zero2", "zero3")
OFFLOADED = ("optimizer", "parameters")


def run_of(folder, recipe, sharding, name="", **values):
    return {
        "recipe": recipe,
        "run": str(folder / f"{name or recipe} {sharding}"),
        "values": VALUES | values | {"sharding": sharding},
    }


def newest(run):
    return max((run / "checkpoints").glob("update-*"))


def saved(run):
    """Return the whole state of the newest checkpoint."""
    checkpoint = newest(run)
    return read_sections(checkpoint, int(checkpoint.name[7:]))


def bits(run):
    """Return the files of the newest checkpoint, one for each rank and section, and the light weights."""
    files = {path.name: path.read_bytes() for path in newest(run).iterdir()}
    return newest(run).name, files, light_bits(run / "light"), light_bits(run / "best")


def tensors(run):
    """Return the bytes of the tensors of the newest checkpoint, by file."""
    return {path.name: path.read_bytes() for path in newest(run).glob("*.safetensors")}


def of_kind(run, kind):
    return [event for event in read(run / "events.jsonl") if event["event"] == kind]


def require_close(actual, expected, *, rtol, atol):
    assert actual.keys() == expected.keys()
    for section in ("model", "averaged"):
        for name, tensor in expected[section].items():
            torch.testing.assert_close(actual[section][name], tensor, rtol=rtol, atol=atol)


def test_divided_weights_learn_as_replicas_and_as_on_the_cpu(ranks_on, tmp_path):
    driver = ranks_on("kaggle-t4x2")
    gpu, cpu = tmp_path / "gpu", tmp_path / "cpu"
    shardings = ("ddp", *DIVIDED)
    plain = [run_of(gpu, "PlainBlocks", sharding) for sharding in DIVIDED]
    usual = [run_of(gpu, "Blocks", sharding) for sharding in shardings]
    fp16 = [run_of(gpu, "Overflowing", sharding, precision="fp16", checkpointing="full") for sharding in shardings]
    offloaded = [
        run_of(gpu, "Overflowing", "zero3", offload, precision="fp16", checkpointing="full", offload=offload)
        for offload in OFFLOADED
    ]
    overflows = driver.run(2, training.train_all, runs=[*plain, *usual, *fp16, *offloaded], seconds=300)
    first, second = (each[len(plain) + len(usual) :] for each in overflows)
    assert all(second) != all(first) and not any(map(min, zip(first, second, strict=True)))  # on one rank only
    on_host = [run_of(cpu, "PlainBlocks", sharding) for sharding in DIVIDED]
    driver.run(2, training.train_all, runs=on_host, device="cpu")
    for sharding in DIVIDED:
        name = f"PlainBlocks {sharding}"
        require_close(saved(gpu / name), saved(cpu / name), rtol=1e-5, atol=1e-6)
        for recipe, tolerance in (("Blocks", 1e-5), ("Overflowing", 1e-3)):
            run, replicas = gpu / f"{recipe} {sharding}", gpu / f"{recipe} ddp"
            require_close(saved(run), saved(replicas), rtol=tolerance, atol=tolerance)
            losses = [[event["metrics"]["loss"] for event in of_kind(each, "evaluation")] for each in (run, replicas)]
            assert losses[0] == pytest.approx(losses[1], rel=tolerance)
    for offload in OFFLOADED:
        assert tensors(gpu / f"{offload} zero3") == tensors(gpu / "Overflowing zero3")


@pytest.mark.slow
def test_stopped_run_ends_in_the_same_bits_on_the_same_number_of_gpus(ranks_on, tmp_path):
    """Also in fp16; a checkpoint fits another number of GPUs, where rounding differs."""
    driver = ranks_on("kaggle-l4x4")
    fp16 = {"precision": "fp16", "checkpointing": "full"}
    straight = [
        run_of(tmp_path, "Blocks", "zero3", "straight"),
        run_of(tmp_path, "Overflowing", "zero2", "straight", **fp16),
    ]
    stopped = [
        run_of(tmp_path, "Blocks", "zero3", "stopped"),
        run_of(tmp_path, "Overflowing", "zero2", "stopped", **fp16),
    ]
    sessions = [
        {**run, **stop}
        for run, stops in zip(stopped, ([{"last_at": 5}, {"last_at": 14}], [{"last_at": 5}]), strict=True)
        for stop in ({"last_stop": "SIGTERM", **stop} for stop in stops)
    ]
    driver.run(2, training.train_all, runs=[*straight, *sessions])
    shutil.copytree(tmp_path / "stopped zero2", tmp_path / "moved zero2")
    driver.run(2, training.train_all, runs=stopped)
    for sharding in DIVIDED:
        assert bits(tmp_path / f"stopped {sharding}") == bits(tmp_path / f"straight {sharding}")
    assert [event["update"] for event in of_kind(tmp_path / "stopped zero3", "stop")] == [3, 5, 6]
    moved = run_of(tmp_path, "Overflowing", "zero2", "moved", **fp16)
    driver.run(4, training.train_all, runs=[{**moved, "allow_inexact": True}])
    assert (newest(tmp_path / "moved zero2") / "optimizer-rank0003.safetensors").exists()
    require_close(saved(tmp_path / "moved zero2"), saved(tmp_path / "straight zero2"), rtol=1e-3, atol=1e-3)
    # The weights for every other use are whole.
    state = saved(tmp_path / "straight zero3")
    light = load_file(tmp_path / "straight zero3" / "light" / "model.safetensors")
    names = [name for name, _ in Network().named_parameters()]
    assert all(torch.equal(light[name], state["averaged"][name]) for name in names if name in light)
    assert set(names) - light.keys() <= {"head.weight"}


RECURRENT = [(sharding, precision) for sharding in DIVIDED for precision in ("fp16", "fp32")]


@pytest.mark.parametrize(
    "cases", [RECURRENT[2:3], pytest.param(RECURRENT, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_recurrent_layers_end_in_the_same_bits_after_a_signal_and_a_kill(ranks_on, tmp_path, cases):
    """The dropout between their layers has a random state of its own, in cuDNN."""
    driver = ranks_on("kaggle-t4x2")
    values = {"logical_shards": 2, "micro_batch": 8, "save_every_updates": 2}
    runs = {
        name: [
            run_of(tmp_path, "Recurrent", sharding, f"{name} {precision}", precision=precision, **values)
            for sharding, precision in cases
        ]
        for name in ("straight", "stopped", "killed")
    }
    stops = [{**run, "last_stop": "SIGTERM", "last_at": at} for run in runs["stopped"] for at in (11, 7)]
    driver.run(2, training.train_all, runs=[*runs["straight"], *stops])
    for run in runs["killed"]:
        for at in (9, 16):
            answers = driver.call(2, training.train_all, runs=[{**run, "last_stop": "SIGKILL", "last_at": at}])
            assert answers.statuses[1] == -9 and answers.statuses[0] not in (0, None), answers.output[-3000:]
    driver.run(2, training.train_all, runs=[*runs["stopped"], *runs["killed"]])
    for name in ("stopped", "killed"):
        for run, straight in zip(runs[name], runs["straight"], strict=True):
            assert len(of_kind(Path(run["run"]), "session")) == 3
            assert tensors(Path(run["run"])) == tensors(Path(straight["run"])), run["run"]
            assert newest(Path(run["run"])).name == newest(Path(straight["run"])).name == "update-00000016"
