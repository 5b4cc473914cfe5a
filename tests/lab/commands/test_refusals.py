"""What is refused before anything is trained on a GPU: settings, processes, a torch that cannot use it."""

import socket
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import DistributedType

import shoestring
from shoestring.base.errors import RunError, UsageError
from shoestring.base.settings import Settings
from shoestring.integrations.arguments import refuse_distribution
from shoestring.integrations.processes import joined
from shoestring.runs.check.rates.writing import measure_to_file
from shoestring.techniques.pipeline.placement import two_devices
from shoestring.training.engine.parallel.joining import join
from shoestring.training.processes.one_process import ONE_PROCESS
from shoestring_recipes.chart.training import build_trainer

PIPELINE = {"sharding": "pipeline", "gpus": 2}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"checkpointing": "some"}, "checkpointing=some: expected no, full or a number of blocks"),
        ({"checkpointing": "full", "compile": "graphs"}, "compile=graphs: checkpointing=full restores"),
        ({"offload": "optimizer", "compile": "graphs"}, "compile=graphs: offload=optimizer moves tensors"),
        ({"stage": "some"}, "stage=some: expected no or yes"),
        ({"save": "none", "save_epochs": 1}, "save_epochs=1: with save=none no checkpoint"),
        ({"gpus": 4, "logical_shards": 2}, "logical_shards=2: must be a multiple of gpus=4"),
        ({"streamed_blocks": 2, "offload": "parameters"}, "streamed_blocks=2: offload=parameters has"),
        ({"streamed_blocks": 2, "compile": "yes"}, "streamed_blocks=2: compile=yes would compile"),
        ({**PIPELINE, "gpus": 4}, "gpus=4: sharding=pipeline divides a model between two GPUs"),
        ({**PIPELINE, "logical_shards": 2}, "logical_shards=2: with sharding=pipeline both GPUs"),
        ({**PIPELINE, "compile": "yes"}, "compile=yes: with sharding=pipeline a backward"),
        ({**PIPELINE, "offload": "parameters"}, "offload=parameters: with sharding=pipeline the weights"),
    ],
)
def test_settings(values, problem):
    with pytest.raises(UsageError, match="invalid settings") as raised:
        Settings(**values)
    assert [line.startswith(problem) for line in raised.value.problems] == [True]


def test_a_model_is_not_divided_on_one_gpu():
    with pytest.raises(UsageError, match="this process sees one GPU"):
        two_devices(torch.device("cuda"))


@pytest.mark.slow
def test_a_torch_that_cannot_use_the_gpu_of_the_driver(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    message = "this machine has NVIDIA T4, but this torch .* cannot use it"
    with pytest.raises(RunError, match=message):
        measure_to_file(tmp_path / "rates.json", "local", overwrite=False, progress=lambda share: None)
    with pytest.raises(UsageError, match=message):
        shoestring.train("temporal", run=tmp_path / "run", size="tiny", micro_batch=8, precision="fp32", probe=False)


def test_processes_that_cannot_connect_to_each_other(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        variables = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": occupied.getsockname()[1]}  # fmt: skip
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))
        with pytest.raises(RunError, match="the 2 processes of this run cannot connect to each other"):
            join(torch.device("cuda"))
        monkeypatch.setenv("WORLD_SIZE", "3")
        with pytest.raises(UsageError, match="a power of two"), joined():
            pass


@pytest.mark.parametrize(
    ("kind", "processes", "message"),
    [
        (DistributedType.FSDP, 1, "cannot train with FSDP"),
        (DistributedType.MULTI_GPU, 2, "world_size is 2, but this is one of 1 processes"),
    ],
)
def test_a_trainer_that_divides_its_work_in_another_way(kind, processes, message):
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(distributed_type=kind), args=SimpleNamespace(world_size=processes)
    )
    with pytest.raises(UsageError, match=message):
        refuse_distribution(trainer, ONE_PROCESS)


def test_completions_that_two_gpus_cannot_share_equally(tmp_path):
    parts = dict.fromkeys(("model", "tokenizer", "charts", "rewards"))
    with pytest.raises(UsageError, match="effective_batch=9 cannot be divided among 2 processes"):
        build_trainer(
            SimpleNamespace(effective_batch=9), Settings(gpus=2, micro_batch=4), None, **parts, folder=tmp_path,
            device=torch.device("cuda"),
        )  # fmt: skip
