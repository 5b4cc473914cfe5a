"""The techniques of plans and options in whole sessions: they train to the same bits as without, or at least reduce the
loss, and continue in the same bits after a stop."""

import json

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.utils.data import TensorDataset

from shoestring.base.errors import UsageError
from shoestring.techniques import offload
from tests.integrations.huggingface import tiny
from tests.sessions import session

OTHER_CPU = torch.device("cpu", 0)
"""The CPU, but not equal to `torch.device("cpu")`, so that tensors are copied as between device and host."""


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.dropout, self.out_proj = nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 8)

    def forward(self, values):
        return values + self.out_proj(self.dropout(torch.tanh(self.q_proj(values))))


class Blocks:
    """Classifies the sign of a sum, with dropout, clipped gradients and a schedule."""

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


def training_result(run):
    """Return the bits of the last checkpoint's tensors, and every validation loss."""
    newest = max((run / "checkpoints").glob("update-*"))
    results = {"losses": losses(run)}
    for part in ("model", "optimizer"):
        tensors = safetensors.torch.load_file(newest / f"{part}.safetensors")
        results[part] = {
            name: (tensor.dtype, tensor.reshape(-1).view(torch.uint8).tolist()) for name, tensor in tensors.items()
        }
    return results


def losses(run):
    return [
        event["metrics"]["loss"]
        for event in map(json.loads, (run / "events.jsonl").read_text().splitlines())
        if event["event"] == "evaluation"
    ]


@pytest.fixture
def plain(tmp_path):
    session(Blocks(), tmp_path / "plain", {"micro_batch": 5})
    return training_result(tmp_path / "plain")


SAME = [
    {"checkpointing": "full"},
    {"checkpointing": "2"},
    {"offload": "optimizer"},
    {"offload": "parameters"},
    {"offload": "parameters", "checkpointing": "full"},
]


@pytest.mark.parametrize("settings", SAME, ids=str)
@pytest.mark.parametrize("host", ["same", "other"])
def test_same_bits_as_without_also_after_resuming(monkeypatch, tmp_path, plain, settings, host):
    if host == "other":
        monkeypatch.setattr(offload, "HOST", OTHER_CPU)
    # An update has two microbatches: the stop is in the third of the four updates of an epoch.
    values = {"micro_batch": 5, **settings}
    assert session(Blocks(), tmp_path / "run", values, stop="limit", at=6).status == "paused"
    assert session(Blocks(), tmp_path / "run", values).status == "finished"
    assert training_result(tmp_path / "run") == plain


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_offloaded_states_with_scaled_losses(monkeypatch, tmp_path, precision):
    values = {"micro_batch": 5, "precision": precision}
    session(Blocks(), tmp_path / "plain", values)
    monkeypatch.setattr(offload, "HOST", OTHER_CPU)
    session(Blocks(), tmp_path / "run", {**values, "offload": "optimizer"})
    assert training_result(tmp_path / "run") == training_result(tmp_path / "plain")


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
def test_training_reduces_the_loss_and_resumes_exactly(tmp_path, values):
    if "lora_r" in values:
        pytest.importorskip("peft")
    values = {"micro_batch": 5, "epochs": 4, **values}
    session(Blocks(), tmp_path / "straight", values)
    assert losses(tmp_path / "straight")[-1] < losses(tmp_path / "straight")[0]
    session(Blocks(), tmp_path / "stopped", values, stop="limit", at=6)
    session(Blocks(), tmp_path / "stopped", values)
    assert training_result(tmp_path / "stopped") == training_result(tmp_path / "straight")


def test_only_adapters_are_trained(tmp_path):
    pytest.importorskip("peft")
    for seed_epochs in (1, 3):
        session(Blocks(), tmp_path / str(seed_epochs), {"micro_batch": 5, "lora_r": 2, "epochs": seed_epochs})
    one_epoch, three_epochs = (training_result(tmp_path / name)["model"] for name in ("1", "3"))
    changed = {name for name in one_epoch if one_epoch[name] != three_epochs[name]}
    assert changed == {name for name in one_epoch if "lora_" in name} and changed


def test_fp16_weights_are_not_trained(tmp_path):
    with pytest.raises(UsageError, match="weights that are trained are fp16") as raised:
        session(Blocks(), tmp_path, {"weights": "fp16", "precision": "fp16"})
    assert "weights=bf16" in str(raised.value)


def test_paged_states_need_a_gpu(tmp_path):
    with pytest.raises(UsageError, match="training runs on the CPU"):
        session(Blocks(), tmp_path, {"optimizer_states": "paged"})


def test_8_bit_states_train_or_need_bitsandbytes(tmp_path):
    """Parameters of 4096 values or more; smaller ones have fp32 states."""

    class Wide(Blocks):
        def model(self):
            return nn.Sequential(nn.Linear(4, 1024), nn.Tanh(), nn.Linear(1024, 64), nn.Linear(64, 2))

    values = {"optimizer_states": "8bit", "micro_batch": 5, "epochs": 2}
    try:
        import bitsandbytes  # noqa: F401
    except ImportError:
        with pytest.raises(UsageError, match="bitsandbytes") as raised:
            session(Wide(), tmp_path / "run", values)
        assert "[bitsandbytes]" in str(raised.value)
        return
    session(Wide(), tmp_path / "straight", values)
    assert losses(tmp_path / "straight")[-1] < losses(tmp_path / "straight")[0]
    session(Wide(), tmp_path / "stopped", values, stop="limit", at=6)
    session(Wide(), tmp_path / "stopped", values)
    # Shared tables are a single tensor at first, and one per state after loading.
    assert training_result(tmp_path / "stopped")["model"] == training_result(tmp_path / "straight")["model"]
    assert losses(tmp_path / "stopped") == losses(tmp_path / "straight")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"double_quantization": True},
        {"weights": "bf16", "precision": "bf16"},
        {"weights": "bf16", "precision": "bf16", "unquantized": "own", "lora_dtype": "bf16"},
    ],
    ids=str,
)
def test_adapters_with_4_bit_weights_resume_exactly(tmp_path, options):
    pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    values = {"micro_batch": 5, "epochs": 4, "lora_r": 2, "quantization": "nf4", **options}
    session(Blocks(), tmp_path / "straight", values)
    assert losses(tmp_path / "straight")[-1] < losses(tmp_path / "straight")[0]
    session(Blocks(), tmp_path / "stopped", values, stop="limit", at=6)
    session(Blocks(), tmp_path / "stopped", values)
    assert training_result(tmp_path / "stopped") == training_result(tmp_path / "straight")
    light = tmp_path / "straight" / "light"
    names = {"adapter_config.json", "adapter_model.safetensors", "manifest.json"}
    assert {path.name for path in light.iterdir()} == names
    assert all("lora_" in name for name in safetensors.torch.load_file(light / "adapter_model.safetensors"))


class Normed(nn.Module):
    """Sums over features and samples, which code for dynamic shapes rounds differently than code for a fixed one."""

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


@pytest.mark.filterwarnings("ignore")  # torch's own compiler uses deprecated functions
@pytest.mark.parametrize("settings", [{}, {"checkpointing": "full"}], ids=str)
def test_compiled_blocks_resume_exactly(tmp_path, settings):
    """As in a new process, nothing is compiled when the second session starts, and 4 is its first size."""
    values = {"micro_batch": 6, "epochs": 2, "compile": "yes", **settings}
    torch._dynamo.reset()
    session(Uneven(), tmp_path / "straight", values)
    assert losses(tmp_path / "straight")[-1] < losses(tmp_path / "straight")[0]
    torch._dynamo.reset()
    assert session(Uneven(), tmp_path / "stopped", values, stop="limit", at=6).status == "paused"
    torch._dynamo.reset()
    assert session(Uneven(), tmp_path / "stopped", values).status == "finished"
    assert training_result(tmp_path / "stopped") == training_result(tmp_path / "straight")


@pytest.mark.filterwarnings("ignore")
def test_compiled_run_needs_allow_inexact_to_continue_uncompiled(tmp_path):
    values = {"micro_batch": 5, "compile": "yes"}
    session(Blocks(), tmp_path, values, stop="limit", at=2)
    with pytest.raises(UsageError, match="not continue bit for bit") as raised:
        session(Blocks(), tmp_path, {"micro_batch": 5})
    assert [problem.partition(":")[0] for problem in raised.value.problems] == ["compile", "compiler"]
    assert session(Blocks(), tmp_path, {"micro_batch": 5}, allow_inexact=True).status == "finished"


def test_chunked_loss_trains_like_the_models_own(tmp_path):
    pytest.importorskip("transformers")
    from shoestring.integrations import huggingface

    class Words(huggingface.recipe_class(str(tiny.write(tmp_path, tiny.LLAMA)))):
        def data(self):
            tokens = torch.randint(0, 40, (12, 16), generator=torch.Generator().manual_seed(0))
            samples = [{"input_ids": row, "labels": row} for row in tokens]
            return {"train": samples, "validation": samples[:4]}

    values = {"seq_len": 16, "effective_batch": 4, "epochs": 2, "micro_batch": 2}
    for name, chunk in (("whole", {}), ("chunks", {"loss_chunk": 5})):
        session(Words(), tmp_path / name, {**values, **chunk})
    whole, chunks = losses(tmp_path / "whole"), losses(tmp_path / "chunks")
    assert whole[-1] < whole[0]
    assert chunks == pytest.approx(whole, rel=1e-5)
    session(Words(), tmp_path / "stopped", {**values, "loss_chunk": 5}, stop="limit", at=5)
    session(Words(), tmp_path / "stopped", {**values, "loss_chunk": 5})
    assert training_result(tmp_path / "stopped") == training_result(tmp_path / "chunks")
