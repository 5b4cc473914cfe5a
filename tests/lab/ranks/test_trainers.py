"""A trainer of transformers on two GPUs, as torchrun starts it: stopped and continued, in fp16."""

import json

import pytest

SCRIPT = """
import os, signal, sys
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from shoestring.integrations.trainer import surviving

run, stop_at, accumulation = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rank = int(os.environ.get("RANK", "0"))

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x, labels):
        return {"loss": (self.layers(x).squeeze(-1) - labels).square().mean()}

class Stopping(TrainerCallback):
    def on_step_end(self, args, state, control, **keywords):
        if state.global_step == stop_at and rank == int(os.environ.get("WORLD_SIZE", "1")) - 1:
            os.kill(os.getpid(), signal.SIGTERM)

generator = torch.Generator().manual_seed(0)
samples = [{"x": x, "labels": x.sum()} for x in torch.randn(52, 8, generator=generator)]
torch.manual_seed(0)

def make_arguments():
    return TrainingArguments(
        output_dir=f"{run}-own", per_device_train_batch_size=4, gradient_accumulation_steps=accumulation, max_steps=8,
        report_to=[], save_strategy="no", fp16=True, max_grad_norm=0.5, learning_rate=1e-2, eval_strategy="steps",
        eval_steps=4, disable_tqdm=True, lr_scheduler_type="constant", seed=3,
    )

# The arguments connect the processes, unless `surviving` has.
arguments = make_arguments() if run == "whole" else None
with surviving(run) as survive:
    arguments = arguments or make_arguments()
    trainer = survive(Trainer)(
        model=Network(), args=arguments, train_dataset=samples, eval_dataset=samples[:20], callbacks=[Stopping()]
    )
    trainer.train()
print(trainer.model.layers[0].weight.device, torch.distributed.get_backend(), trainer.args.parallel_mode)
"""


def newest(run):
    return max((run / "checkpoints").glob("update-*"))


@pytest.mark.slow
def test_trainer_on_two_gpus_continues_bit_for_bit(run_simulated, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "script.py"]
    result = run_simulated([*launcher, "whole", "-1", "2"], on="kaggle-t4x2")
    assert "cuda:0" in result.stdout and "cuda:1" in result.stdout and "nccl" in result.stdout
    run_simulated([*launcher, "run", "3", "2"], on="kaggle-t4x2")
    state = json.loads((tmp_path / "run" / "state.json").read_text())
    assert (state["status"], state["update"]) == ("paused", 3)
    result = run_simulated([*launcher, "run", "-1", "2"], on="kaggle-t4x2")
    assert "cuda:0" in result.stdout and "cuda:1" in result.stdout and "nccl" in result.stdout
    whole, run = newest(tmp_path / "whole"), newest(tmp_path / "run")
    assert whole.name == run.name == "update-00000008"
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()
