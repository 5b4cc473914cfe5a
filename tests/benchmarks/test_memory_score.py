"""Scoring of memory estimates: rows to scores, the table, and the measured loops."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.memory import score, xmem
from benchmarks.percentiles import percentile

from shoestring.base.errors import UsageError
from shoestring.hardware.catalog import DEVICES
from shoestring.planning.estimate.memory import Range
from shoestring.planning.trace.simulated_device import tensors

ROW = {
    "id": "X1",
    "experiment": "anova",
    "family": "transformer",
    "model": "org/tiny",
    "optimizer": "SGD",
    "batch_size": "4",
    "zero_grad": "0",
    "gpu": "RTX 3060 12GB",
    "oom": "0",
    "measured_bytes": "100000000",
    "xmem_bytes": "120000000",
    "dnnmem_bytes": "",
}
TINY = {"model_type": "gpt2", "vocab_size": 50, "n_positions": 128, "n_embd": 8, "n_head": 2, "n_layer": 1}


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    (tmp_path / "org--tiny.json").write_text(json.dumps(TINY), "utf-8")
    return tmp_path


def make_score(measured: int, estimate: int, *, oom: bool = False, fits: bool = True, high: int = 0) -> score.Score:
    return score.Score(
        row=ROW,
        rivals={"xmem": 2.0 * measured},
        measured=measured,
        estimate=Range(0, estimate, high or estimate),
        fits=fits,
        fitted=not oom,
        group="cnn",
        capacity=1000,
    )


def table_cells(table: str, family: str, name: str) -> list[str]:
    return next(line.split()[2:] for line in table.splitlines() if line.split()[:2] == [family, name])


def scores_of(set_name: str, rows: list[dict[str, str]], configs: Path) -> list[dict[str, Any]]:
    file = configs / "rows.csv"
    with file.open("w", newline="", encoding="utf-8") as rows_file:
        writer = csv.DictWriter(rows_file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    out = configs / "out.json"
    assert score.main([set_name, str(file), "--configs", str(configs), "--json", str(out)]) == 0
    scores: list[dict[str, Any]] = json.loads(out.read_text("utf-8"))["rows"]
    return scores


def test_file_of_rows_becomes_file_of_scores(configs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    rows = [ROW, ROW | {"id": "X2", "model": "org/other"}, ROW | {"id": "X3", "gpu": "RTX 1"}]
    first, second, third = scores_of("xmem", rows, configs)
    assert first["id"] == "X1" and first["measured"] == 100_000_000
    # At least the two workspaces of cuBLAS of 8.125 MiB each.
    assert 16 * 2**20 < first["low"] <= first["estimate"] <= first["high"] < 200 * 2**20
    assert "org--other.json" in second["skipped"]
    assert third == {"id": "X3", "skipped": "unknown GPU RTX 1"}
    output = capsys.readouterr()
    assert table_cells(output.out, "transformer", "xmem")[:2] == ["1", "20.00%"]
    assert "X2: skipped" in output.err


def test_lora_rows_compare_allocated_reserved_and_process(configs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("peft")
    row = {"id": "L1", "model": "org/tiny", "micro_batch": "2", "seq_len": "16", "attention": "sdpa"}
    row |= {"checkpointing": "1", "lora_r": "2", "lora_alpha": "4", "quantization": "nf4"}
    row |= {"allocated_bytes": "100000000", "reserved_bytes": "200000000", "process_bytes": "300000000"}
    row_score, unmeasured = scores_of("lora", [row, row | {"id": "L2", "allocated_bytes": ""}], configs)
    assert row_score["measured"] == 100_000_000
    reserved, process = row_score["reserved"], row_score["process"]
    assert (reserved["measured"], process["measured"]) == (200_000_000, 300_000_000)
    assert reserved["estimate"] > row_score["estimate"] > row_score["low"]
    assert reserved["low"] <= reserved["estimate"] <= reserved["high"]
    # The CUDA context of a T4 lies between them.
    _, context, _ = DEVICES["t4"].context_bytes
    assert process["estimate"] - reserved["estimate"] == context
    assert process["low"] < process["estimate"] < process["high"]
    assert unmeasured == {"id": "L2", "skipped": "nothing was measured"}
    tables = capsys.readouterr().out.split("\n\n")
    assert [table.split()[0] for table in tables] == ["rows", "reserved", "process"]
    assert all(table_cells(table, "nf4", "sdpa")[:2] == ["shoestring", "1"] for table in tables)


@pytest.mark.slow
def test_training_rows_use_local_and_hub_models(configs: Path) -> None:
    pytest.importorskip("transformers")
    row = {"id": "T1", "gpu": "T4", "num_gpus": "1", "model": "gpt-11m", "precision": "fp32"}
    row |= {"optimizer": "torch AdamW lr3e-4 foreach=False", "micro_batch": "1", "seq_len_or_image": "8"}
    row |= {"checkpointing": "0", "allocated_bytes": "200000000"}
    two_gpu_row = row | {"id": "T2", "num_gpus": "2"}
    hub_row = row | {"id": "T3", "model": "tiny", "precision": "fp16 AMP", "optimizer": "bnb AdamW8bit"}
    image_row = row | {"id": "T4", "model": "resnet18-cifar", "seq_len_or_image": "32x32", "optimizer": "SGD m0.9"}
    text_row = row | {"id": "T5", "model": "lstm-lm", "optimizer": "SGD", "gpu": "P100"}
    unknown_row = row | {"id": "T6", "optimizer": "Lion"}
    rows = [row, two_gpu_row, hub_row, image_row, text_row, unknown_row]
    one_gpu, two_gpus, hub, resnet, lstm, lion = scores_of("train", rows, configs)
    # 10.9 million parameters, with gradients and two states each, all in fp32.
    assert one_gpu["estimate"] > 4 * 4 * 10_900_000
    # The buckets of DistributedDataParallel are as large as all gradients.
    assert two_gpus["estimate"] - one_gpu["estimate"] == pytest.approx(4 * 10_900_000, rel=0.05)
    assert 0 < hub["estimate"] < one_gpu["estimate"]
    assert resnet["estimate"] > 3 * 4 * 11_173_962
    assert lstm["estimate"] > 0
    assert "Lion" in lion["skipped"]


@pytest.mark.slow
def test_column_sharding_chooses_ddp_or_fsdp(configs: Path) -> None:
    row = {"gpu": "T4", "num_gpus": "2", "model": "gpt-11m", "precision": "fp32", "optimizer": "AdamW"}
    row |= {"micro_batch": "1", "seq_len_or_image": "8", "checkpointing": "0", "allocated_bytes": "200000000"}
    (older,) = scores_of("train", [row | {"id": "S0"}], configs)
    rows = [row | {"id": name, "sharding": name} for name in ("ddp", "zero3", "rows")]
    ddp, zero3, unknown = scores_of("train", rows, configs)
    assert ddp["estimate"] == older["estimate"]
    # Half of the weights, gradients and two states of 10.9 million parameters, and no buckets of all gradients.
    assert zero3["estimate"] < ddp["estimate"] - 2 * 4 * 10_900_000
    assert unknown["skipped"] == "unknown sharding rows"


def test_missing_torchvision_skips_every_row(configs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    monkeypatch.delenv("SHOESTRING_TORCHVISION", raising=False)
    row = {"gpu": "T4", "num_gpus": "1", "precision": "fp32", "optimizer": "SGD", "micro_batch": "1"}
    row |= {"seq_len_or_image": "224x224", "checkpointing": "0", "allocated_bytes": "200000000"}
    rows = [row | {"id": name, "model": name} for name in ("resnet18", "resnet50")]
    for row_score in scores_of("train", rows, configs):
        assert row_score["skipped"].startswith("needs torchvision: set SHOESTRING_TORCHVISION=DIR ")


def test_table_counts_errors_of_fitting_rows() -> None:
    scores = [make_score(100, 110), make_score(100, 96), make_score(100, 70), make_score(100, 500, oom=True)]
    table = score.table(scores, xmem.ROWS)
    assert table_cells(table, "all", "shoestring") == ["3", "10.00%", "30.00%", "30.00%", "67%", "33.3%", "25.0%"]
    assert table_cells(table, "all", "xmem")[:2] == ["3", "100.00%"]
    assert "high end: above 33.3%" in table


def test_wrong_fits_are_counted_among_estimated_fits() -> None:
    scores = [make_score(100, 100), make_score(100, 500, oom=True, fits=False)]
    assert table_cells(score.table(scores, xmem.ROWS), "all", "shoestring")[-1] == "0.0%"


@pytest.mark.parametrize(("share", "value"), [(0.5, 5), (0.9, 9), (0.91, 10), (1.0, 10)])
def test_percentiles_are_elements_of_the_list(share: float, value: int) -> None:
    assert percentile(range(1, 11), share) == value


def test_large_batches_almost_certainly_contain_a_long_line(configs: Path) -> None:
    text = xmem.Text(name="org/tiny", optimizer_name="SGD", zero_grad=0, configs=configs)
    probabilities = [sum(text.first_batches(size).values()) for size in (1, 5, 10, 40)]
    assert probabilities == sorted(probabilities, reverse=True)
    assert probabilities[0] > 0.9 and probabilities[1] > 0.5 and probabilities[-1] < 0.001


class LinearRun(xmem.Run):
    def forward(self, model: torch.nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = model(batch)
        return outputs, outputs.sum()


@pytest.mark.parametrize(
    ("zero_grad", "at_forward", "at_backward", "after_step"),
    [(0, False, False, True), (1, True, False, True), (2, False, False, False)],
)
def test_gradients_are_cleared_at_the_rows_place(
    zero_grad: int, at_forward: bool, at_backward: bool, after_step: bool
) -> None:
    run = LinearRun(name="line", optimizer_name="SGD", zero_grad=zero_grad)
    model = torch.nn.Linear(2, 2)
    optimizer = run.optimizer(model)
    alive: list[bool] = []
    model.register_forward_hook(lambda *_: alive.append(model.weight.grad is not None))
    for _ in range(2):
        loss = run.loss(model, torch.zeros(1, 2))
        alive.append(model.weight.grad is not None)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        alive.append(model.weight.grad is not None)
    assert alive[3:] == [at_forward, at_backward, after_step]


def test_outputs_live_until_the_next_step() -> None:
    run = LinearRun(name="line", optimizer_name="SGD", zero_grad=0)
    model = torch.nn.Linear(2, 2)
    run.optimizer(model)
    run.loss(model, torch.zeros(1, 2))
    assert sum(tensor.numel() for tensor in tensors(list(run._last_step))) == 2 + 1 + 2


def test_unknown_optimizer_is_named() -> None:
    with pytest.raises(UsageError, match="has no Lamb"):
        LinearRun(name="line", optimizer_name="Lamb", zero_grad=0).optimizer(torch.nn.Linear(1, 1))
