"""Scoring time estimates: rows to seconds, what the measured loops did, and where the table comes from."""

import csv
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.memory.score import Score
from benchmarks.time import adaptdl, derive, score, train

from shoestring.errors import UsageError
from shoestring.estimate.kernels import padded_flops
from shoestring.estimate.time import Seconds

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


def scores_of(which: str, rows: list[dict[str, str]], folder: Path) -> list[dict[str, Any]]:
    file, out = folder / "rows.csv", folder / "out.json"
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    assert score.main([which, str(file), "--configs", str(folder), "--json", str(out)]) == 0
    found: list[dict[str, Any]] = json.loads(out.read_text("utf-8"))["rows"]
    return found


def test_rows_become_seconds_with_a_range(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        ROW,
        ROW | {"id": "T2", "seconds_per_step": ""},
        ROW | {"id": "T3", "notes": "2 nodes x 1 GPU", "num_gpus": "2"},
        ROW | {"id": "T4", "num_gpus": "2"},
        ROW | {"id": "T5", **ADAPTDL},
    ]
    one, unmeasured, nodes, two, watched = scores_of("train", rows, tmp_path)
    assert one["measured"] == 0.05 and 0 < one["low"] < one["estimate"] < one["high"] < 1
    assert unmeasured == {"id": "T2", "skipped": "nothing was measured"}
    assert "several machines" in nodes["skipped"]
    assert two["estimate"] > one["estimate"]
    assert watched["estimate"] > 1.5 * one["estimate"]
    said = capsys.readouterr().out
    assert "wrong fit" not in said and "T4 gpt-11m fp32" in said
    assert "T4, someone/else: " in said and "T4, petuum/adaptdl: " in said


def test_lora_rows_are_of_one_archive(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    tiny = {"model_type": "gpt2", "vocab_size": 50, "n_positions": 128, "n_embd": 8, "n_head": 2, "n_layer": 1}
    (tmp_path / "org--tiny.json").write_text(json.dumps(tiny), "utf-8")
    row = {"id": "L1", "model": "org/tiny", "micro_batch": "2", "seq_len": "16", "attention": "sdpa"}
    row |= {"checkpointing": "1", "lora_r": "2", "lora_alpha": "4", "quantization": "nf4", "seconds_per_step": "0.1"}
    assert score.source(row) == score.ARCHIVE
    (found,) = scores_of("lora", [row], tmp_path)
    assert 0 < found["estimate"] < 0.1


def test_percentiles_of_measured_over_predicted_by_source() -> None:
    def scored(measured: float, **row: str) -> Score:
        estimate = Seconds(parts={"forward": 1.0}, low=0.5, high=2.0, source="")
        return Score(row=ROW | row, measured=measured, estimate=estimate)

    many = [scored(1 + number / 100) for number in range(1, 41)]
    others = [scored(3.0, gpu="P100"), replace(scored(9.0), skipped="no")]
    assert list(score.shown([*many, *others])) == [
        "T4, someone/else: 1.02 to 1.38, 40 rows",
        "P100, someone/else: 3.00 to 3.00, 1 rows",
    ]


def test_an_estimate_made_of_its_own_row_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Seconds(parts={}, low=0.0, high=0.0, source="timed by someone/else")
    monkeypatch.setattr(score, "update_seconds", lambda *_, **__: said)
    case: Any = train.case(ROW, Path())
    trace: Any = None
    with pytest.raises(UsageError, match="own source"):
        score.of_time(ROW, score.SETS["train"], case, trace)


def test_a_loop_is_what_its_notes_say() -> None:
    assert train.Loop.of(ROW) == train.Loop()
    trainer = train.Loop.of(ROW | {"notes": "Freeze 10 encoder layers; Trainer train_samples_per_second"})
    assert (trainer.clip_norm, trainer.frozen) == (1.0, 10)
    old = train.Loop.of(ROW | ADAPTDL | {"num_gpus": "2"})
    assert (old.old, old.watched, old.alone) == (True, True, False)
    assert train.case(ROW | ADAPTDL, Path()).settings.optimizer_kernel == "for-loop"


def test_frozen_layers_are_the_first_ones() -> None:
    class Step:
        effective_batch, epochs, seed = 1, 1, 0
        batch = loss = first_batches = None

        def model(self) -> torch.nn.Module:
            return torch.nn.ModuleDict({"layer": torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(3))})

    step: Any = Step()
    model: Any = train.Measured(step, train.Loop(frozen=2)).model()
    assert [layer.weight.requires_grad for layer in model["layer"]] == [False, False, True]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize("alone", [True, False])
def test_watching_gradients_changes_none_of_them(alone: bool, kind: Any) -> None:
    def trained(watched: bool) -> torch.Tensor:
        model = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.ones_(model.weight)
        optimizer = kind(model.parameters(), lr=0.1)
        if watched:
            adaptdl.watch(model, optimizer, alone=alone)
        for number in range(3):
            optimizer.zero_grad()
            model(torch.full((1, 2), 1.0 + number)).sum().backward()
            optimizer.step()
        return model.weight.detach()

    assert torch.equal(trained(True), trained(False))


def kernel_csv(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    with gzip.open(folder / f"{name}.csv.gz", "wt", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def test_the_table_is_found_again_in_timings_made_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    floor, fast, wide = 20e-6, 4e12, 200e9
    shapes = [(1, 512 + 8 * step, 512, 2048) for step in range(60)]
    timed = [
        {
            **dict(zip("BMNK", shape, strict=True)),
            "Latency": 1e3 * (floor + padded_flops(shape) / fast),
        }
        for shape in shapes
    ]
    kernel_csv(tmp_path, "linear", timed)
    kernel_csv(tmp_path, "bmm", timed)
    image = {"B": 8, "Input_Size": 32, "Kernel_Szie": 3, "Stride": 1, "Padding": 1}
    channels = [{**image, "Input_Channel": 64 + step, "Output_Channel": 64} for step in range(60)]
    work = [2 * 8 * 32 * 32 * 64 * 9 * row["Input_Channel"] for row in channels]
    timed_images = [{**row, "Latency": 1e3 * (floor + flops / fast)} for row, flops in zip(channels, work, strict=True)]
    kernel_csv(tmp_path, "conv", timed_images)
    for name in (*derive.ELEMENTWISE, "softmax", "ln"):
        operands = derive._OPERANDS.get(name, 2)
        sizes = [(1, 100), (40_000, 1024)]
        rows = [
            {"B": many, "H": width, "Latency": 1e3 * max(floor, 4 * operands * many * width / wide)}
            for many, width in sizes
        ]
        kernel_csv(tmp_path, name, rows)
    assert derive.main([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "least seconds of an operator: 20.0 us" in said
    assert "softmax: 200 GB/s" in said
    assert "matrix products: (9.0, 4.00e12), (9.5, 4.00e12)" in said
    assert "3x3 convolutions: (9.0, 4.00e12)" in said
