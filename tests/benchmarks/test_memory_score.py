"""Scoring memory estimates: rows to scores, the table, and the loops whose runs were measured."""

import csv
import json
from pathlib import Path

import pytest
import torch
from benchmarks.memory import score, xmem

from shoestring.errors import QuestionError
from shoestring.trace.pretend import tensors

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


def scored(measured: int, estimate: int, *, oom: bool = False, fits: bool = True, high: int = 0) -> score.Score:
    row = ROW | {"measured_bytes": str(measured), "oom": str(int(oom)), "xmem_bytes": str(2 * measured)}
    return score.Score(row=row, estimate=estimate, high=high or estimate, fits=fits)


def figures(table: str, family: str, name: str) -> list[str]:
    return next(line.split()[2:] for line in table.splitlines() if line.split()[:2] == [family, name])


def test_a_file_of_rows_becomes_a_file_of_scores(configs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    rows = configs / "rows.csv"
    with rows.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ROW)
        writer.writeheader()
        writer.writerows([ROW, ROW | {"id": "X2", "model": "org/other"}, ROW | {"id": "X3", "gpu": "RTX 1"}])
    out = configs / "out.json"
    assert score.main(["xmem", str(rows), "--configs", str(configs), "--json", str(out)]) == 0
    first, second, third = json.loads(out.read_text("utf-8"))["rows"]
    assert first["id"] == "X1" and first["measured"] == 100_000_000
    # At least the workspaces of cuBLAS, twice 8.125 MiB.
    assert 16 * 2**20 < first["low"] <= first["estimate"] <= first["high"] < 200 * 2**20
    assert "org--other.json" in second["skipped"]
    assert third == {"id": "X3", "skipped": "no GPU RTX 1 is known"}
    said = capsys.readouterr()
    assert figures(said.out, "transformer", "xmem")[:2] == ["1", "20.0%"]
    assert "skipped X2" in said.err


def test_the_table_counts_errors_of_rows_that_fitted() -> None:
    rows = [scored(100, 110), scored(100, 96), scored(100, 70), scored(100, 500, oom=True)]
    assert figures(score.table(rows), "all", "shoestring") == ["3", "10.0%", "30.0%", "30.0%", "66.7%", "25.0%"]
    assert figures(score.table(rows), "all", "xmem")[:2] == ["3", "100.0%"]
    assert "high end holds 33%" in score.table(rows)


def test_fits_is_wrong_only_where_it_was_said() -> None:
    rows = [scored(100, 100), scored(100, 500, oom=True, fits=False)]
    assert figures(score.table(rows), "all", "shoestring")[-1] == "0.0%"


@pytest.mark.parametrize(("share", "value"), [(0.5, 5), (0.9, 9), (0.91, 10), (1.0, 10)])
def test_percentiles_are_values_of_the_list(share: float, value: int) -> None:
    assert score.percentile(range(1, 11), share) == value


class Line(xmem.Run):
    def forward(self, model: torch.nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = model(batch)
        return outputs, outputs.sum()


@pytest.mark.parametrize(
    ("zero_grad", "at_forward", "at_backward", "after_step"),
    [(0, False, False, True), (1, True, False, True), (2, False, False, False)],
)
def test_gradients_are_cleared_where_the_row_says(
    zero_grad: int, at_forward: bool, at_backward: bool, after_step: bool
) -> None:
    run = Line(name="line", optimizer_name="SGD", zero_grad=zero_grad)
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


def test_outputs_live_until_the_next_have_their_name() -> None:
    run = Line(name="line", optimizer_name="SGD", zero_grad=0)
    model = torch.nn.Linear(2, 2)
    run.optimizer(model)
    run.loss(model, torch.zeros(1, 2))
    assert sum(tensor.numel() for tensor in tensors(list(run._last))) == 2 + 1 + 2


def test_an_unknown_optimizer_is_named() -> None:
    with pytest.raises(QuestionError, match="has no Lamb"):
        Line(name="line", optimizer_name="Lamb", zero_grad=0).optimizer(torch.nn.Linear(1, 1))
