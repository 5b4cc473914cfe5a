from shoestring.hardware.targets import find
from shoestring.plan.weight_type import with_weight_type
from shoestring.recipe.finding import choose


def weights(target, **values):
    return with_weight_type(choose("finetune", values)[0], find(target)).options["weights"]


def test_frozen_weights_have_the_16_bit_type_of_the_gpu():
    assert (weights("t4"), weights("a100-80"), weights("cpu")) == ("fp16", "bf16", "fp32")


def test_trained_weights_and_those_that_are_set_keep_their_type():
    assert weights("t4", lora_r=None) == "fp32"
    assert weights("t4", weights="bf16") == "bf16"
    assert with_weight_type(choose("temporal", {})[0], find("t4")).options["weights"] == "fp32"
