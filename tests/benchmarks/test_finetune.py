"""The calculations of the benchmarks of fine-tuning, without training."""

import json

import pytest
import torch
from benchmarks.finetune import behaviour, compare, kills, plans
from benchmarks.finetune.contenders import batch_tokens, count_learnt
from benchmarks.finetune.conversations import follows_format, functions, prompt_of, read_jsonl, rows, write
from safetensors.torch import save_file

from shoestring.recipe.finding import choose

STOP = 2


@pytest.mark.parametrize("pairs", [False, True])
def test_conversations_teach_the_format_and_are_the_same_each_time(tmp_path, pairs):
    train, validation = (read_jsonl(file) for file in write(tmp_path / "data", 30, seed=1, pairs=pairs))
    assert (len(train), len(validation)) == (30, 3)
    assert [*train, *validation] == rows(33, 1, pairs=pairs) != rows(33, 2, pairs=pairs)
    answers = [(row["chosen"] if pairs else row["messages"])[-1]["content"] for row in train]
    assert all(map(follows_format, answers)) and len(set(answers)) == 30
    assert all([message["role"] for message in prompt_of(row)] == ["user"] for row in train)
    if pairs:
        assert not any(follows_format(row["rejected"][0]["content"]) for row in train)


def test_no_more_rows_than_functions():
    with pytest.raises(ValueError, match="the standard library has"):
        rows(len(functions()) + 1, 0)


@pytest.mark.parametrize(
    ("text", "follows"),
    [
        ("Name: poll\nSummary: Check it.", True),
        ("Name: poll\nSummary: Check it.\n", True),
        ("Name: poll\nSummary: Check it.\nMore.", False),
        ("Sure!\nName: poll\nSummary: Check it.", False),
        ("Name: poll Summary: Check it.", False),
    ],
)
def test_format(text, follows):
    assert follows_format(text) is follows


def test_learnt_tokens_are_counted_alike_in_both_forms_of_a_batch():
    """The line break after the stop token is not counted, whoever learns it."""
    tokens = torch.tensor([[5, 6, 7, STOP, 9], [5, 7, STOP, 0, 0]])
    learnt = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]], dtype=torch.bool)
    assert count_learnt(tokens, learnt, STOP) == 4
    positions = learnt.flatten().nonzero().squeeze(1)
    assert batch_tokens({"input_ids": tokens, "places": positions - 1}, STOP) == (4, 10)
    assert batch_tokens({"input_ids": tokens, "positions": positions}, STOP) == (4, 10)


def measurements(speed, peak, loss):
    return {
        "learnt_tokens_per_second": speed,
        "learnt_tokens_per_cpu_second": speed,
        "update_seconds": 1 / speed,
        "rows_of_update": 8,
        "mean_microbatch_tokens": 100,
        "largest_microbatch_tokens": 120,
        "peak_bytes": peak,
        "resident_peak_bytes": peak,
        "validation_loss": loss,
        "details": {},
    }


def test_goals_are_against_the_fastest_configuration_of_trl():
    results = {
        "TRL, defaults": [measurements(50, 100, 1.0)] * 2,
        "TRL, padded": [measurements(8, 90, 1.0), measurements(9, 90, 1.1)],
        "TRL, packed": [measurements(10, 100, 1.0), measurements(20, 100, 1.1)],
        "Shoestring, packed": [measurements(12, 100, 1.05), measurements(22, 99, 1.15)],
        "Shoestring, by length": [measurements(9, 101, 1.2), measurements(18, 101, 1.3)],
    }
    assert compare.best_of_trl(results) == "TRL, packed"
    table = compare.summaries(results)
    ours = next(row for row in table if row["contender"] == "Shoestring, packed")
    assert ours["faster"] == pytest.approx(1.15) and ours["faster_range"] == pytest.approx([1.1, 1.2])
    goals = compare.goal_results(table, "TRL, packed")
    assert list(goals["Shoestring, packed"].values()) == [True, True, True]
    assert list(goals["Shoestring, by length"].values()) == [False, False, False]
    assert "1.15 (1.10 to 1.20)" in compare.table(table)


def test_rows_to_train_and_to_hold_out_are_different(tmp_path):
    (data,) = write(tmp_path / "data.jsonl", 12, seed=0)
    train, held_out = compare.split(data, 8, 4, tmp_path)
    assert read_jsonl(train) + read_jsonl(held_out) == read_jsonl(data)
    with pytest.raises(SystemExit, match="has 12 rows: 10 to train and 4 to hold out"):
        compare.split(data, 10, 4, tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        *plans.VARIANTS.values(),
        *((*kills.COMMON, *options) for options in kills.CASES.values()),
        *((*behaviour.COMMON, *options) for options in behaviour.CASES.values()),
    ],
    ids=" ".join,
)
def test_options_of_the_commands_are_valid(options):
    choose("finetune", dict(option.split("=", 1) for option in options))


def test_measurements_of_unsloth(tmp_path):
    header = "id,micro_batch,grad_accum,task,seq_len_or_image,peak_mem_bytes,speed_value,speed_unit,source\n"
    lines = "UNS-a,2,4,SFT,2048 max,7000,120,s/60_steps,there\nUNS-b,2,4,SFT,512 max,7000,120,s/2_epochs,there\n"
    (tmp_path / "records.csv").write_text(header + lines)
    assert plans.published(tmp_path / "records.csv") == {
        "UNS-a": {
            "peak_bytes": 7000,
            "update_seconds": 2.0,
            "rows": 8,
            "task": "SFT",
            "lengths": "2048 max",
            "source": "there",
        }
    }


def test_failed_plan_is_a_row(tmp_path):
    row = {"model": "Any", "variant": "nf4", "target": "kaggle-t4", "error": "error: no such option\nhint: none"}
    assert plans.table([row]).endswith("| Any | nf4 | kaggle-t4 | error: no such option |")


def test_shares_of_answers():
    answers = [{"prediction": "Name: a\nSummary: B.", "stopped": True}, {"prediction": "Sure!", "stopped": True}]
    assert behaviour.shares(list(map(json.dumps, answers))) == {
        "answers": 2,
        "in_format": 0.5,
        "stopped": 1.0,
        "first_answer": "Name: a\nSummary: B.",
    }


def test_digest_is_of_tensors(tmp_path):
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(1.0), "c": torch.zeros(0)}
    save_file(tensors, tmp_path / "one.safetensors", metadata={"written": "today"})
    save_file(dict(reversed(tensors.items())), tmp_path / "two.safetensors")
    assert kills.digest(tmp_path / "one.safetensors") == kills.digest(tmp_path / "two.safetensors")
    for change in ({"a": tensors["a"].view(3, 2)}, {"b": torch.tensor(2.0)}, {"c": torch.zeros(0, dtype=torch.int32)}):
        save_file({**tensors, **change}, tmp_path / "three.safetensors")
        assert kills.digest(tmp_path / "three.safetensors") != kills.digest(tmp_path / "one.safetensors")
