"""What the code around a model does with its outputs, and older losses: the same values, and what stays in memory."""

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import torch
from accelerate.utils import convert_outputs_to_fp32
from transformers import LlamaConfig, LlamaForCausalLM

from shoestring.base.errors import UsageError
from shoestring.integrations.huggingface import Options, loops
from shoestring.recipe.finding import load
from tests.integrations.huggingface import tiny


@pytest.fixture(scope="module")
def model():
    values = {name: value for name, value in tiny.LLAMA.items() if isinstance(value, int) and name != "model_type"}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**values, use_cache=False))


BATCH = {name: torch.arange(16).view(2, 8) for name in ("input_ids", "labels")}


@pytest.mark.parametrize("version", ["4.45.2", "4.48", "4.49"])
def test_older_losses_have_the_value_of_the_installed_one(model, version):
    result = loops.outputs(model, BATCH, "plain", version)
    assert result.loss.item() == pytest.approx(model(**BATCH).loss.item(), rel=1e-6)


def test_older_models_return_fp32(model):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        types = [loops.outputs(model, BATCH, "plain", version).logits.dtype for version in ("4.45", "4.46", None)]
    assert types == [torch.float32, torch.bfloat16, torch.bfloat16]


@pytest.mark.parametrize("loop", ["trainer", "accelerate"])
def test_outputs_are_those_that_accelerate_returns(model, loop):
    def computed(forward):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return forward()

    expected = convert_outputs_to_fp32(lambda: computed(lambda: model(**BATCH)))()
    actual = computed(lambda: loops.outputs(model, BATCH, loop, None))
    assert actual.logits.dtype == expected.logits.dtype == torch.float32
    assert torch.equal(actual.logits, expected.logits) and torch.equal(actual.loss, expected.loss)
    assert loops.outputs(model.bfloat16(), BATCH, loop, None).logits.dtype == torch.bfloat16  # without autocast
    model.float()


@pytest.mark.parametrize(("trained_by", "holds"), [("shoestring", False), ("trainer", False), ("accelerate", True)])
def test_a_script_holds_its_outputs_until_the_next_ones(tmp_path, trained_by, holds):
    path = tiny.write(tmp_path, tiny.LLAMA)
    recipe = load(f"hf:{path}", {"seq_len": 8, "trained_by": trained_by}).recipe
    recipe.loss(recipe.model(), recipe.batch(1))
    assert (recipe._outputs is not None) is holds


def test_options_that_contradict_each_other_are_refused():
    for values, problem in (
        ({"transformers": "old"}, "transformers=old: must be a version"),
        ({"transformers": "4.48", "loss_chunk": 8}, "are about the model's own loss"),
        ({"trained_by": "trainer", "method": "dpo"}, "are about the model's own loss"),
        ({"second_model": True}, "only method=dpo has a reference"),
    ):
        with pytest.raises(UsageError) as caught:
            Options(**values)
        assert any(problem in text for text in caught.value.problems), caught.value.problems
