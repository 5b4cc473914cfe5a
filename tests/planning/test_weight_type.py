import json

import shoestring
from shoestring.base.settings import Settings
from shoestring.hardware.targets import find
from shoestring.planning.weight_type import precision_of_frozen_weights, with_weight_type
from shoestring.recipe.finding import choose
from tests.integrations.huggingface import tiny


def weights(target, recipe="finetune", **values):
    loaded, settings = choose(recipe, values)
    return with_weight_type(loaded, find(target), settings).options["weights"]


def test_frozen_weights_have_the_16_bit_type_of_the_gpu():
    assert (weights("t4"), weights("a100-80"), weights("cpu")) == ("fp16", "bf16", "fp32")


def test_trained_weights_and_those_that_are_set_keep_their_type():
    assert weights("t4", lora_r=None) == "fp32"
    assert weights("t4", weights="bf16") == "bf16"
    assert with_weight_type(choose("temporal", {})[0], find("t4"), Settings()).options["weights"] == "fp32"


def test_a_requested_precision_is_also_that_of_frozen_weights():
    assert (weights("t4", precision="fp32"), weights("a100-80", precision="fp16")) == ("fp32", "fp16")


def test_frozen_weights_of_16_bits_compute_with_autocast_in_their_type():
    def precision(target, **values):
        return precision_of_frozen_weights(choose("finetune", values)[0], find(target).device)

    assert (precision("t4", weights="fp16"), precision("a100-80", weights="bf16")) == ("fp16", "bf16")
    assert (precision("t4", weights="fp32"), precision("t4", weights="bf16")) == (None, None)
    assert precision("t4", weights="fp16", lora_r=None) is None


def test_adapters_in_bf16_are_not_planned_in_fp16():
    def planned(target, **values):
        loaded, settings = choose("finetune", {"lora_dtype": "bf16", **values})
        device = find(target)
        loaded = with_weight_type(loaded, device, settings)
        return loaded.options["weights"], precision_of_frozen_weights(loaded, device.device)

    assert (planned("a100-80"), planned("t4")) == (("bf16", "bf16"), ("fp32", "fp32"))
    assert planned("t4", weights="fp16") == ("fp16", "fp32")


def test_weights_that_adapters_freeze_have_16_bits_for_a_hugging_face_configuration_too(tmp_path):
    recipe = f"hf:{tiny.write(tmp_path, tiny.LLAMA)}"
    assert [weights(target, recipe, lora_r=8) for target in ("t4", "l4", "cpu")] == ["fp16", "bf16", "fp32"]
    assert weights("t4", recipe) == weights("t4", recipe, lora_r=8, weights="fp32") == "fp32"


class Wide:
    """A layer of 14.9 GiB, which no T4 has room for."""

    def model(self):
        import torch

        return torch.nn.Linear(2**16, 61_000, bias=False)

    def batch(self, size):
        import torch

        return torch.zeros(size, 2**16)

    def loss(self, model, batch):
        return model(batch).square().mean()


def test_an_estimate_that_does_not_fit_says_what_it_assumed():
    answer = shoestring.estimate(Wide(), "t4", micro_batch=2)
    assert "precision=fp32, checkpointing=no are assumed" in answer.assumption
    assert "are assumed" in " ".join(str(answer).split())
    assert answer.assumption == json.loads(json.dumps(answer.json()))["notes"][0]
    fixed = shoestring.estimate(Wide(), "t4", micro_batch=2, precision="fp32", checkpointing="no")
    assert (fixed.assumption, fixed.peak_bytes) == ("", answer.peak_bytes)
