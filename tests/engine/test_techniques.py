"""What a plan may choose and what an option may change, through whole sessions: learnt the same, or learnt at all, and
continued in the same bits after a stop in the middle."""

import json

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.utils.data import TensorDataset

from shoestring.errors import UsageError
from shoestring.techniques import offload
from tests.recipes.huggingface import tiny
from tests.sessions import session

APART = torch.device("cpu", 0)
"""The CPU, but not equal to `torch.device("cpu")`: what is in host memory is copied as between device and host."""


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.dropout, self.out_proj = nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 8)

    def forward(self, values):
        return values + self.out_proj(self.dropout(torch.tanh(self.q_proj(values))))


class Blocks:
    """Signs of a sum, by a stack with dropout, clipped gradients and a schedule."""

    epochs = 2
    effective_batch = 10
    learning_rate = 0.01
    clip_norm = 1.0

    def model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.Sequential(*(Block() for _ in range(3))), nn.Linear(8, 2))

    def batch(self, size):
        return torch.zeros(size, 4), torch.zeros(size, dtype=torch.long)

    def schedule(self, update, _updates_per_epoch, total):
        return 1 - update / (2 * total)

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def data(self):
        inputs = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
        labels = (inputs.sum(dim=1) > 0).long()
        return {
            "train": TensorDataset(inputs[:40], labels[:40]),
            "validation": TensorDataset(inputs[40:], labels[40:]),
        }


def learnt(run):
    """The last checkpoint's tensors, to the bit, and every metric; how it was learnt stands elsewhere in it."""
    newest = max((run / "checkpoints").glob("update-*"))
    found = {"losses": losses(run)}
    for part in ("model", "optimizer"):
        tensors = safetensors.torch.load_file(newest / f"{part}.safetensors")
        found[part] = {name: (x.dtype, x.reshape(-1).view(torch.uint8).tolist()) for name, x in tensors.items()}
    return found


def losses(run):
    return [
        event["metrics"]["loss"]
        for event in map(json.loads, (run / "events.jsonl").read_text().splitlines())
        if event["event"] == "evaluation"
    ]


@pytest.fixture
def plain(tmp_path):
    session(Blocks(), tmp_path / "plain", {"micro_batch": 5})
    return learnt(tmp_path / "plain")


SAME = [
    {"checkpointing": "full"},
    {"checkpointing": "2"},
    {"offload": "optimizer"},
    {"offload": "parameters"},
    {"offload": "parameters", "checkpointing": "full"},
]


@pytest.mark.parametrize("settings", SAME, ids=str)
@pytest.mark.parametrize("where", ["one", "apart"])
def test_same_bits_as_without_also_after_a_stop(monkeypatch, tmp_path, plain, settings, where):
    if where == "apart":
        monkeypatch.setattr(offload, "HOST", APART)
    # Two microbatches make an update: the stop is in the third, of four in an epoch.
    values = {"micro_batch": 5, **settings}
    assert session(Blocks(), tmp_path / "run", values, stop="limit", at=6).status == "paused"
    assert session(Blocks(), tmp_path / "run", values).status == "finished"
    assert learnt(tmp_path / "run") == plain


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_offloaded_states_with_scaled_losses_too(monkeypatch, tmp_path, precision):
    values = {"micro_batch": 5, "precision": precision}
    session(Blocks(), tmp_path / "plain", values)
    monkeypatch.setattr(offload, "HOST", APART)
    session(Blocks(), tmp_path / "run", {**values, "offload": "optimizer"})
    assert learnt(tmp_path / "run") == learnt(tmp_path / "plain")


@pytest.mark.parametrize(
    "values",
    [
        {"optimizer_kernel": "foreach"},
        {"optimizer_kernel": "fused"},
        {"lora_r": 2},
        {"lora_r": 2, "weights": "bf16", "precision": "bf16"},
        {"lora_r": 2, "weights": "fp16", "precision": "fp16"},
        {"weights": "bf16", "precision": "bf16"},
    ],
    ids=str,
)
def test_learns_and_continues_in_the_same_bits(tmp_path, values):
    if "lora_r" in values:
        pytest.importorskip("peft")
    values = {"micro_batch": 5, "epochs": 4, **values}
    session(Blocks(), tmp_path / "straight", values)
    assert losses(tmp_path / "straight")[-1] < losses(tmp_path / "straight")[0]
    session(Blocks(), tmp_path / "stopped", values, stop="limit", at=6)
    session(Blocks(), tmp_path / "stopped", values)
    assert learnt(tmp_path / "stopped") == learnt(tmp_path / "straight")


def test_adapters_alone_are_trained(tmp_path):
    pytest.importorskip("peft")
    for seed_epochs in (1, 3):
        session(Blocks(), tmp_path / str(seed_epochs), {"micro_batch": 5, "lora_r": 2, "epochs": seed_epochs})
    one, three = (learnt(tmp_path / name)["model"] for name in ("1", "3"))
    changed = {name for name in one if one[name] != three[name]}
    assert changed == {name for name in one if "lora_" in name} and changed


def test_fp16_weights_are_not_trained(tmp_path):
    with pytest.raises(UsageError, match="weights that are trained are fp16") as refused:
        session(Blocks(), tmp_path, {"weights": "fp16", "precision": "fp16"})
    assert "weights=bf16" in str(refused.value)


def test_states_in_pages_need_a_gpu(tmp_path):
    with pytest.raises(UsageError, match="no GPU here"):
        session(Blocks(), tmp_path, {"optimizer_states": "paged"})


def test_states_in_8_bits_need_bitsandbytes_or_learn(tmp_path):
    """Of 4096 values or more: smaller ones have fp32 states."""

    class Wide(Blocks):
        def model(self):
            return nn.Sequential(nn.Linear(4, 1024), nn.Tanh(), nn.Linear(1024, 64), nn.Linear(64, 2))

    values = {"optimizer_states": "8bit", "micro_batch": 5, "epochs": 2}
    try:
        import bitsandbytes  # noqa: F401
    except ImportError:
        with pytest.raises(UsageError, match="bitsandbytes") as refused:
            session(Wide(), tmp_path / "run", values)
        assert "shoestring[bitsandbytes]" in str(refused.value)
        return
    session(Wide(), tmp_path / "straight", values)
    assert losses(tmp_path / "straight")[-1] < losses(tmp_path / "straight")[0]
    session(Wide(), tmp_path / "stopped", values, stop="limit", at=6)
    session(Wide(), tmp_path / "stopped", values)
    # Tables that all states share are one tensor at first, and one for each once they were loaded.
    assert learnt(tmp_path / "stopped")["model"] == learnt(tmp_path / "straight")["model"]
    assert losses(tmp_path / "stopped") == losses(tmp_path / "straight")


@pytest.mark.parametrize("more", [{}, {"double_quantization": True}, {"weights": "bf16", "precision": "bf16"}], ids=str)
def test_adapters_learn_beside_4_bits_and_continue_in_the_same_bits(tmp_path, more):
    pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    values = {"micro_batch": 5, "epochs": 4, "lora_r": 2, "quantization": "nf4", **more}
    session(Blocks(), tmp_path / "straight", values)
    assert losses(tmp_path / "straight")[-1] < losses(tmp_path / "straight")[0]
    session(Blocks(), tmp_path / "stopped", values, stop="limit", at=6)
    session(Blocks(), tmp_path / "stopped", values)
    assert learnt(tmp_path / "stopped") == learnt(tmp_path / "straight")
    light = tmp_path / "straight" / "light"
    names = {"adapter_config.json", "adapter_model.safetensors", "manifest.json"}
    assert {path.name for path in light.iterdir()} == names
    assert all("lora_" in name for name in safetensors.torch.load_file(light / "adapter_model.safetensors"))


class Normed(nn.Module):
    """Sums over features and over samples, which code for any size rounds in another way than code for one."""

    def __init__(self):
        super().__init__()
        self.norm, self.statistics = nn.LayerNorm(40), nn.BatchNorm1d(40)
        self.dropout, self.linear = nn.Dropout(0.1), nn.Linear(40, 40)

    def forward(self, values):
        return values + self.linear(self.dropout(nn.functional.gelu(self.statistics(self.norm(values)))))


class Uneven(Blocks):
    """Four updates in an epoch, of 12 and 4 samples: microbatches of 6 and 4."""

    effective_batch = 12

    def model(self):
        return nn.Sequential(nn.Linear(4, 40), nn.Sequential(Normed(), Normed()), nn.Linear(40, 2))


@pytest.mark.filterwarnings("ignore")  # torch's own compiler uses what torch calls deprecated
@pytest.mark.parametrize("more", [{}, {"checkpointing": "full"}], ids=str)
def test_compiled_blocks_learn_and_continue_in_the_same_bits(tmp_path, more):
    """As in another process nothing is compiled when the second session begins, and 4 is the first size it meets."""
    values = {"micro_batch": 6, "epochs": 2, "compile": "yes", **more}
    torch._dynamo.reset()
    session(Uneven(), tmp_path / "straight", values)
    assert losses(tmp_path / "straight")[-1] < losses(tmp_path / "straight")[0]
    torch._dynamo.reset()
    assert session(Uneven(), tmp_path / "stopped", values, stop="limit", at=6).status == "paused"
    torch._dynamo.reset()
    assert session(Uneven(), tmp_path / "stopped", values).status == "finished"
    assert learnt(tmp_path / "stopped") == learnt(tmp_path / "straight")


@pytest.mark.filterwarnings("ignore")
def test_a_run_that_was_compiled_is_not_continued_uncompiled_unless_it_may_be_inexact(tmp_path):
    values = {"micro_batch": 5, "compile": "yes"}
    session(Blocks(), tmp_path, values, stop="limit", at=2)
    with pytest.raises(UsageError, match="not continue bit for bit") as refused:
        session(Blocks(), tmp_path, {"micro_batch": 5})
    assert [problem.partition(":")[0] for problem in refused.value.problems] == ["compile", "compiler"]
    assert session(Blocks(), tmp_path, {"micro_batch": 5}, allow_inexact=True).status == "finished"


def test_a_loss_in_chunks_learns_as_the_models_own(tmp_path):
    pytest.importorskip("transformers")
    from shoestring.recipes import huggingface

    class Words(huggingface.of(str(tiny.write(tmp_path, tiny.LLAMA)))):
        def data(self):
            tokens = torch.randint(0, 40, (12, 16), generator=torch.Generator().manual_seed(0))
            samples = [{"input_ids": row, "labels": row} for row in tokens]
            return {"train": samples, "validation": samples[:4]}

    values = {"seq_len": 16, "effective_batch": 4, "epochs": 2, "micro_batch": 2}
    for name, more in (("whole", {}), ("chunks", {"loss_chunk": 5})):
        session(Words(), tmp_path / name, {**values, **more})
    whole, chunks = losses(tmp_path / "whole"), losses(tmp_path / "chunks")
    assert whole[-1] < whole[0]
    assert chunks == pytest.approx(whole, rel=1e-5)
    session(Words(), tmp_path / "stopped", {**values, "loss_chunk": 5}, stop="limit", at=5)
    session(Words(), tmp_path / "stopped", {**values, "loss_chunk": 5})
    assert learnt(tmp_path / "stopped") == learnt(tmp_path / "chunks")
