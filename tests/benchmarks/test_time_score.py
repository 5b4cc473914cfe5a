"""Scoring of time estimates: rows to seconds, the operations of the measured loops, and the table of rates."""

import csv
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.memory import train as memory_train
from benchmarks.memory.score import Score
from benchmarks.time import adaptdl, cards, derive, gavel, score, train

from shoestring.base.errors import UsageError
from shoestring.planning.estimate.kernels import padded_flops
from shoestring.planning.estimate.time import Seconds

ROW = {
    "id": "T1",
    "gpu": "T4",
    "num_gpus": "1",
    "model": "gpt-11m",
    "precision": "fp32",
    "optimizer": "torch AdamW lr3e-4 foreach=False",
    "micro_batch": "1",
    "seq_len_or_image": "8",
    "checkpointing": "0",
    "seconds_per_step": "0.05",
    "source": "someone/else#log",
    "notes": "",
}
ADAPTDL = {"source": "petuum/adaptdl#traces", "notes": "NGC PyTorch 20.10 container"}


def scores_of(set_name: str, rows: list[dict[str, str]], folder: Path) -> list[dict[str, Any]]:
    file, out = folder / "rows.csv", folder / "out.json"
    with file.open("w", newline="", encoding="utf-8") as rows_file:
        writer = csv.DictWriter(rows_file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    assert score.main([set_name, str(file), "--configs", str(folder), "--json", str(out)]) == 0
    scores: list[dict[str, Any]] = json.loads(out.read_text("utf-8"))["rows"]
    return scores


@pytest.mark.slow
def test_rows_become_seconds_with_a_range(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        ROW,
        ROW | {"id": "T2", "seconds_per_step": ""},
        ROW | {"id": "T3", "notes": "2 nodes x 1 GPU", "num_gpus": "2"},
        ROW | {"id": "T4", "num_gpus": "2"},
        ROW | {"id": "T5", **ADAPTDL},
    ]
    one_gpu, unmeasured, nodes, two_gpus, monitored = scores_of("train", rows, tmp_path)
    assert one_gpu["source"] == "someone/else" and "petuum/adaptdl" in one_gpu["range_from"]
    assert monitored["source"] == "petuum/adaptdl" and "petuum/adaptdl" not in monitored["range_from"]
    assert one_gpu["measured"] == 0.05 and 0 < one_gpu["low"] < one_gpu["estimate"] < one_gpu["high"] < 1
    assert unmeasured == {"id": "T2", "skipped": "nothing was measured"}
    assert "several machines" in nodes["skipped"]
    assert two_gpus["estimate"] > one_gpu["estimate"]
    assert monitored["estimate"] > 1.5 * one_gpu["estimate"]
    output = capsys.readouterr().out
    assert "wrong fit" not in output and "T4 gpt-11m fp32" in output
    assert "T4, someone/else: " in output and "T4, petuum/adaptdl: " in output


@pytest.mark.slow
def test_weights_that_fsdp_gathers_take_time(tmp_path: Path) -> None:
    rows = [ROW | {"id": name, "num_gpus": "2", "sharding": name} for name in ("ddp", "zero3")]
    ddp, zero3 = scores_of("train", rows, tmp_path)
    assert zero3["estimate"] > 1.1 * ddp["estimate"]


def test_lora_rows_have_one_source(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    tiny = {"model_type": "gpt2", "vocab_size": 50, "n_positions": 128, "n_embd": 8, "n_head": 2, "n_layer": 1}
    (tmp_path / "org--tiny.json").write_text(json.dumps(tiny), "utf-8")
    row = {"id": "L1", "model": "org/tiny", "micro_batch": "2", "seq_len": "16", "attention": "sdpa"}
    row |= {"checkpointing": "1", "lora_r": "2", "lora_alpha": "4", "quantization": "nf4", "seconds_per_step": "0.1"}
    assert score.source(row) == score.ARCHIVE
    (row_score,) = scores_of("lora", [row], tmp_path)
    assert 0 < row_score["estimate"] < 0.1


def test_spread_lines_are_percentiles_by_source() -> None:
    def make_score(measured: float, **row: str) -> Score:
        estimate = Seconds(parts={"forward": 1.0}, low=0.5, high=2.0, source="")
        return Score(row=ROW | row, measured=measured, estimate=estimate)

    t4_scores = [make_score(1 + number / 100) for number in range(1, 41)]
    other_scores = [make_score(3.0, gpu="P100"), replace(make_score(9.0), skipped="no")]
    assert list(score.spread_lines([*t4_scores, *other_scores])) == [
        "T4, someone/else: 1.02 to 1.38, 40 rows",
        "P100, someone/else: 3.00 to 3.00, 1 rows",
    ]


def test_estimate_from_its_own_source_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate = Seconds(parts={}, low=0.0, high=0.0, source="timed by someone/else")
    monkeypatch.setattr(score, "update_seconds", lambda *_, **__: estimate)
    case: Any = train.case(ROW, Path())
    trace: Any = None
    with pytest.raises(UsageError, match="own source"):
        score.score_time(ROW, score.SETS["train"], case, trace)


CARD = {
    "id": "LAM-3090-bert",
    "gpu": "RTX 3090",
    "num_gpus": "1",
    "model": "bert-base-uncased",
    "precision": "fp32 (NGC enables TF32 on Ampere and newer)",
    "micro_batch": "48",
    "seq_len_or_image": "384 (padded)",
    "seconds_per_step": "0.56",
    "source": "someone/else@0123456:results/log.txt",
}


def test_rows_of_cards_name_their_precision_and_memory_format() -> None:
    def settings(**changes: str) -> Any:
        return cards.case(CARD | changes, Path()).settings

    assert (settings().precision, settings().tf32, settings().optimizer_kernel) == ("fp32", True, "fused")
    assert not settings(gpu="V100-SXM2-16GB").tf32  # it has none
    # BERT has weights in fp16, all others are trained with autocast.
    assert (settings(precision="--fp16 of run_squad.py").precision, settings(precision="--fp16").tf32) == (
        "fp32",
        False,
    )
    images = {"id": "TIMM-1", "model": "timm resnet18", "precision": "torch.cuda.amp fp16 autocast"}
    last = settings(**images, seq_len_or_image="224x224, channels_last")
    assert (last.precision, last.memory_format, last.optimizer_kernel) == ("fp16", "channels_last", "for-loop")
    assert last.cudnn_benchmark and settings(**images).memory_format == "contiguous"
    with pytest.raises(UsageError, match="unknown GPU Voodoo"):
        settings(gpu="Voodoo")
    assert score.source(CARD) == "someone/else"
    assert score.SETS["cards"].group(CARD) == "RTX 3090 LAM fp32"


def test_rows_are_printed_with_their_ratio() -> None:
    estimate = Seconds(parts={"forward": 0.5}, low=0.4, high=0.55, source="")
    scores = [Score(row=CARD, measured=0.56, estimate=estimate), Score(row=ROW, skipped="no rates")]
    line, skipped = score.row_lines(scores)
    assert "predicted 0.500 s (0.400 to 0.550), measured 0.560 s, ratio 0.89, in range: no" in line
    assert skipped == "T1: no rates"


def test_loop_is_read_from_notes_and_source() -> None:
    assert train.Loop.from_row(ROW) == train.Loop()
    trainer = train.Loop.from_row(ROW | {"notes": "Freeze 10 encoder layers; Trainer train_samples_per_second"})
    assert (trainer.clip_norm, trainer.frozen) == (1.0, train._FROZEN_LAYERS)
    adaptive = train.Loop.from_row(ROW | ADAPTDL | {"num_gpus": "2"})
    assert (adaptive.monitored, adaptive.single_process, adaptive.autotuned) == (True, False, False)
    images = {"model": "resnet18-cifar", "notes": "NGC PyTorch 20.03; cudnn.benchmark"}
    assert train.Loop.from_row(ROW | ADAPTDL | images).autotuned
    assert train.Loop.from_row(ROW | ADAPTDL | images).weight_decay == 5e-4
    assert train.case(ROW | ADAPTDL | images | {"seq_len_or_image": "32x32"}, Path()).settings.cudnn_benchmark


def test_loops_of_gavel_are_those_of_its_repository() -> None:
    of_gavel = ROW | {"source": "stanford-futuredata/gavel#throughputs"}
    words, images, imagenet = (
        train.Loop.from_row(of_gavel | {"model": name}) for name in ("lstm-lm", "resnet18-cifar", "resnet50")
    )
    assert (words.clip_norm, words.collates, words.momentum, words.autotuned) == (0.25, True, None, False)
    assert (images.clip_norm, images.collates, images.momentum, images.autotuned) == (None, False, 0.9, False)
    assert imagenet.autotuned


def test_gavels_loader_changes_no_token() -> None:
    tokens = torch.arange(12).reshape(4, 3)
    assert torch.equal(gavel.collate(tokens), tokens)


def test_optimizer_of_a_loop_has_its_options() -> None:
    step: Any = memory_train.case(ROW | {"optimizer": "SGD"}, Path()).recipe()
    loop = train.Loop(momentum=0.9, weight_decay=5e-4)
    optimizer = train.LoopStep(step, loop).optimizer(torch.nn.Linear(1, 1))
    assert [(group["momentum"], group["weight_decay"]) for group in optimizer.param_groups] == [(0.9, 5e-4)]


def test_frozen_layers_are_the_first_ones_and_the_embeddings() -> None:
    class Step:
        effective_batch, epochs, seed = 1, 1, 0
        batch = loss = first_batches = None

        def model(self) -> torch.nn.Module:
            layers = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(3))
            return torch.nn.ModuleDict({"embeddings": torch.nn.Embedding(2, 1), "layer": layers})

    step: Any = Step()
    model: Any = train.LoopStep(step, train.Loop(frozen=2)).model()
    assert [layer.weight.requires_grad for layer in model["layer"]] == [False, False, True]
    assert not model["embeddings"].weight.requires_grad
    whole: Any = train.LoopStep(step, train.Loop()).model()
    assert whole["embeddings"].weight.requires_grad


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize("single_process", [True, False])
def test_monitoring_gradients_does_not_change_them(single_process: bool, kind: Any) -> None:
    def train_weight(monitored: bool) -> torch.Tensor:
        model = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.ones_(model.weight)
        optimizer = kind(model.parameters(), lr=0.1)
        if monitored:
            adaptdl.monitor(model, optimizer, single_process=single_process)
        for number in range(3):
            optimizer.zero_grad()
            model(torch.full((1, 2), 1.0 + number)).sum().backward()
            optimizer.step()
        return model.weight.detach()

    assert torch.equal(train_weight(True), train_weight(False))


def write_kernel_csv(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    with gzip.open(folder / f"{name}.csv.gz", "wt", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def test_derived_rates_match_the_generated_timings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    floor, flops_per_second, bytes_per_second = 20e-6, 4e12, 200e9
    shapes = [(1, 512 + 8 * step, 512, 2048) for step in range(60)]
    product_timings = [
        {
            **dict(zip("BMKN", shape, strict=True)),
            "Latency": 1e3 * (floor + padded_flops(shape) / flops_per_second),
        }
        for shape in shapes
    ]
    write_kernel_csv(tmp_path, "linear", product_timings)
    write_kernel_csv(tmp_path, "bmm", product_timings)
    image = {"B": 8, "Input_Size": 32, "Kernel_Szie": 3, "Stride": 1, "Padding": 1}
    channels = [{**image, "Input_Channel": 64 + step, "Output_Channel": 64} for step in range(60)]
    work = [2 * 8 * 32 * 32 * 64 * 9 * row["Input_Channel"] for row in channels]
    convolution_timings = [
        {**row, "Latency": 1e3 * (floor + flops / flops_per_second)} for row, flops in zip(channels, work, strict=True)
    ]
    write_kernel_csv(tmp_path, "conv", convolution_timings)
    for name in (*derive.ELEMENTWISE, "softmax", "ln"):
        operands = derive._OPERANDS.get(name, 2)
        sizes = [(1, 100), (40_000, 1024)]
        rows = [
            {"B": count, "H": width, "Latency": 1e3 * max(floor, 4 * operands * count * width / bytes_per_second)}
            for count, width in sizes
        ]
        write_kernel_csv(tmp_path, name, rows)
    assert derive.main([str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "minimum seconds of an operator: 20.0 us" in output
    assert "softmax: 200 GB/s" in output
    assert "matrix products: (9.0, 4.00e12), (9.5, 4.00e12)" in output
    assert "3x3 convolutions: (9.0, 4.00e12)" in output
