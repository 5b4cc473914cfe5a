"""Runs of the recipe: they learn, and end in the same bits however they were stopped or divided."""

import json
from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING

import shoestring
from shoestring.base.errors import UsageError
from shoestring.recipe.finding import choose
from shoestring_recipes.finetune import batches
from shoestring_recipes.finetune.building import build_random, separates_samples
from tests.recipes.finetune.exported_models import byte_level_tokenizer, random_model
from tests.sessions import final_checkpoint, session
from tests.slow import slow_except

VALUES = {
    "effective_batch": 8,
    "micro_batch": 4,
    "max_updates": 6,
    "seq_len": 128,
    "answer_tokens": 4,
    "subset": 32,
    "weights": "fp32",
    "save_every_updates": 2,
}
KINDS = {
    "lora": {},
    "packed": {"packing": "yes", "micro_batch": 2},
    "dpo": {"method": "dpo"},
    "nf4": {"quantization": "nf4"},
    "all weights": {"lora_r": None},
    "dora with dropout": {"lora_dora": True, "lora_rslora": True, "lora_dropout": 0.1},
}


@pytest.mark.parametrize("kind", slow_except(list(KINDS), "lora"))
def test_a_stopped_run_ends_in_the_bits_of_one_that_was_not(kind: str, tmp_path: Path) -> None:
    values = {**VALUES, **KINDS[kind]}
    assert session("finetune", tmp_path / "whole", values).status == "finished"
    stops = [session("finetune", tmp_path / "run", values, stop="SIGTERM", at=place).update for place in (3, 2)]
    assert stops[0] < stops[1] < 6
    assert session("finetune", tmp_path / "run", values).status == "finished"
    assert final_checkpoint(tmp_path / "run") == final_checkpoint(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_trains_experts_and_added_tokens(tmp_path: Path) -> None:
    pytest.importorskip("peft", minversion="0.17")
    tokenizer, folder = byte_level_tokenizer(), tmp_path / "model"
    rows = len(tokenizer) - 1  # without that of <think>
    random_model("mixtral", rows=rows, num_local_experts=3, num_experts_per_tok=2).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    data = tmp_path / "rows.jsonl"
    row = {"prompt": "What is the capital of France?", "completion": "<think> It is Paris."}
    data.write_text("\n".join(json.dumps(row | {"prompt": f"{number}: {row['prompt']}"}) for number in range(40)))
    values = {**VALUES, "subset": None, "model": str(folder), "data": str(data)}
    with pytest.raises(UsageError, match=f"ids up to {rows}, and the model's embedding has {rows} rows") as caught:
        session("finetune", tmp_path / "refused", values)
    assert caught.value.problems == (f"'<think>' is {rows}, which 40 samples have",)
    values["enlarge_vocabulary"] = True
    session("finetune", tmp_path / "whole", values)
    session("finetune", tmp_path / "run", values, stop="SIGTERM", at=3)
    session("finetune", tmp_path / "run", values)
    assert final_checkpoint(tmp_path / "run") == final_checkpoint(tmp_path / "whole")


def test_packing_does_not_change_an_update() -> None:
    """The rows of an update are the same, and so is its loss and its gradient beyond rounding."""
    from shoestring.training.data.loading import Loader
    from shoestring.training.data.order import DataOrder

    loaded, _ = choose("finetune", {**VALUES, "lora_r": None})
    data = loaded.data()["train"]
    torch.manual_seed(0)
    model = loaded.recipe.model().double()
    order = DataOrder.of(data, effective_batch=8, seed=0)
    gradients = []
    for packing in (False, True):
        model.zero_grad()
        total = 0.0
        with Loader(
            loaded.recipe, data, order, seed=0, device=torch.device("cpu"), workers=0, packing=packing
        ) as loader:
            batches = list(loader.microbatches(0, 2))
        assert sum(samples for _, samples in batches) == 8
        assert any("position_ids" in batch for batch, _ in batches) == packing
        for batch, _ in batches:
            loss, weight = loaded.recipe.loss(model, batch)
            loss.backward()
            total += weight
        gradients.append((total, [parameter.grad.clone() for parameter in model.parameters()]))
    assert gradients[0][0] == gradients[1][0]
    for first, second in zip(gradients[0][1], gradients[1][1], strict=True):
        torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-10)


@pytest.mark.slow
def test_plan_counts_short_rows_and_packs_them(tmp_path: Path) -> None:
    """Rows of very different lengths are worth packing if many of them fit into one of the largest length."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": "word " * (4 + 7 * number % 120)},
                {"role": "assistant", "content": "yes"},
            ]
        }
        for number in range(60)
    ]
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    fixed = {"data": str(data), "seq_len": 512, "precision": "fp16", "checkpointing": "no", "micro_batch": 1}
    plan = shoestring.plan("finetune", on="t4", **fixed)
    (sorted_by_length,) = [other for other in plan.alternatives if other["settings"]["packing"] == "no"]
    assert plan.settings.packing == "yes"
    assert plan.time.predicted.update_seconds < sorted_by_length["update_seconds"]
    assert plan.options["weights"] == "fp16"


def test_samples_that_see_each_other_are_found_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose mask does not follow the positions."""

    def collate(rows):
        return {name: values for name, values in batches_collate(rows).items() if name != "position_ids"}

    batches_collate = batches.collate
    monkeypatch.setattr(batches, "collate", collate)
    with pytest.raises(UsageError, match="packed samples attend to each other"):
        session("finetune", tmp_path, {**VALUES, **KINDS["packed"]})


@pytest.mark.parametrize(("model_type", "is_packed"), [("llama", True), ("opt", False), ("mamba", False)])
def test_only_models_that_separate_samples_are_packed(model_type: str, is_packed: bool) -> None:
    assert separates_samples(CONFIG_MAPPING[model_type]()) == is_packed


@pytest.mark.parametrize("model_type", ["bert", "bart"])
def test_models_with_an_encoder_are_refused(model_type: str) -> None:
    with pytest.raises(UsageError, match=f"a {model_type}, which has an encoder"):
        build_random(CONFIG_MAPPING[model_type]())
