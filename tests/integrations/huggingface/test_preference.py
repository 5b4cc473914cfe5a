"""Pairs of `hf:`: the reference is the model without its adapter, or a second model that is not trained."""

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")

import math

import torch

from shoestring.base.errors import UsageError
from shoestring.recipe.finding import load
from shoestring.techniques import adapt, checkpointing
from tests.integrations.huggingface import tiny


def built(folder, **options):
    loaded = load(f"hf:{tiny.write(folder, tiny.LLAMA)}", {"seq_len": 8, "method": "dpo", **options})
    return loaded.recipe, adapt.model(loaded.recipe.model(), loaded.adaptation)


@pytest.mark.parametrize("options", [{"lora_r": 2}, {"second_model": True}, {"second_model": True, "loss_chunk": 3}])
def test_before_training_no_answer_is_preferred(tmp_path, options):
    recipe, model = built(tmp_path, **options)
    batch = recipe.batch(3)
    assert batch["input_ids"].shape == (6, 8) and len(batch["positions"]) == 6 * 7
    batch["input_ids"] = torch.randint(0, 512, (6, 8))
    loss = recipe.loss(model, batch)
    assert loss.item() == pytest.approx(math.log(2), abs=1e-5)
    loss.backward()
    trained = [name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()]
    assert trained and not any(name.startswith("reference.") for name in trained)


def test_a_second_model_is_not_trained_and_has_no_blocks_to_recompute(tmp_path):
    recipe, model = built(tmp_path, second_model=True)
    counts = [sum(weight.numel() for weight in part.parameters()) for part in (model.trained, model.reference)]
    assert counts[0] == counts[1] == tiny.LINEAR_WEIGHTS + tiny.OTHER_WEIGHTS
    assert (
        sum(weight.numel() for group in recipe.optimizer(model).param_groups for weight in group["params"]) == counts[0]
    )
    assert checkpointing.blocks(model, recipe) == list(model.trained.model.layers)


def test_a_reference_is_needed_and_only_one(tmp_path):
    recipe, model = built(tmp_path)
    with pytest.raises(UsageError, match="second model in memory") as caught:
        recipe.loss(model, recipe.batch(1))
    assert "second_model=yes" in caught.value.hint
    recipe, model = built(tmp_path, second_model=True, lora_r=2)
    with pytest.raises(UsageError, match="with adapters the reference is the model itself"):
        recipe.loss(model, recipe.batch(1))
    with pytest.raises(UsageError, match="no causal language model"):
        load(f"hf:{tiny.write(tmp_path, tiny.BERT)}", {"method": "dpo"}).recipe.model()
