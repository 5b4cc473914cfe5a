"""The comparison with FitCheck and other calculators: their questions, the cache of configurations, and the tables."""

import json
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks.memory import calculators, fitcheck
from benchmarks.memory.fitcheck import Prediction
from benchmarks.tables import accuracy

from shoestring.base.errors import UsageError
from shoestring.base.units import MIB

ROW = {
    "id": "A",
    "model": "org/model",
    "quantization": "nf4",
    "lora_r": "32",
    "micro_batch": "2",
    "seq_len": "512",
    "checkpointing": "1",
    "attention": "sdpa",
    "allocated_bytes": "1000",
    "process_bytes": "2000",
}


def test_fused_attention_is_flash_attention_for_fitcheck() -> None:
    assert "--flash-attn" in fitcheck.command("fitcheck", ROW)
    assert "--flash-attn" not in fitcheck.command("fitcheck", {**ROW, "attention": "eager"})
    assert "--grad-checkpoint" not in fitcheck.command("fitcheck", {**ROW, "checkpointing": "0"})


def test_program_reads_configurations_without_the_hub(tmp_path: Path) -> None:
    (tmp_path / "org--model.json").write_text('{"hidden_size": 8}', encoding="utf-8")
    program = tmp_path / "fitcheck"
    answer = json.dumps({"memory_mib": {"total": 3, "overhead": 1}})
    program.write_text(
        "#!/bin/sh\n"
        'test "$HF_HUB_OFFLINE" = 1 && grep -q hidden_size "$HF_HOME"/hub/models--org--model/snapshots/0/config.json\n'
        f"test $? = 0 && echo '{answer}'\nexit 1\n",
        encoding="utf-8",
    )
    program.chmod(stat.S_IRWXU)
    predictions = fitcheck.fitcheck_predictions([ROW], str(program), tmp_path)
    assert predictions == {"A": Prediction(tensors=2 * MIB, process=3 * MIB)}


def test_missing_configuration_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        fitcheck.fill_cache(["org/other"], tmp_path, tmp_path / "home")


def test_table_has_relative_errors() -> None:
    prediction = Prediction(tensors=1100, process=1500)
    predictions = {name: {"A": prediction, "B": prediction} for name in ("shoestring", "fitcheck")}
    lines = list(fitcheck.table([ROW, {**ROW, "id": "B", "quantization": "none"}], predictions))
    tensors, process = (line for line in lines if "nf4" in line and "fitcheck" in line)
    assert "10.00%" in tensors and "-25.00%" in process


def test_groups_without_rows_have_no_line() -> None:
    predictions = {name: {"A": Prediction(tensors=1100, process=1500)} for name in ("shoestring", "fitcheck")}
    assert not any(" none " in line for line in fitcheck.table([ROW], predictions))


def test_calculator_is_asked_only_for_weights_that_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    questions = []

    def estimate(folder: str, **options: object) -> SimpleNamespace:
        questions.append((folder, options))
        return SimpleNamespace(total=100, overhead=10)

    monkeypatch.setitem(sys.modules, "vramcalc", SimpleNamespace(estimate=estimate))
    model = calculators.Model(folder=Path("folder"), config=None, parameters=1)
    assert calculators.vramcalc(ROW, model) is None and not questions
    assert calculators.vramcalc({**ROW, "quantization": "none", "checkpointing": "0"}, model) == 110
    ((folder, options),) = questions
    assert folder == "folder" and options["batch"] == 2 and options["grad_checkpoint"] is False


def test_table_of_calculators_has_signs_and_the_share_that_is_too_low() -> None:
    rows = [
        {"measured": 100, "predictions": {"fitcheck": 110, "vramcalc": 50}},
        {"measured": 100, "predictions": {"fitcheck": 80}},
    ]
    *_, first, second = accuracy._calculators(rows, {"vramcalc": "0.1"}).splitlines()
    assert first == "| FitCheck | 2 | 15.0% | 20.0% | -20.0% | 50% |"
    assert second == "| vramcalc 0.1 | 1 | 50.0% | 50.0% | -50.0% | 100% |"
