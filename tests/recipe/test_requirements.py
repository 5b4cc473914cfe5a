"""The extras that a recipe with its options requires."""

import pytest

from shoestring.recipe.finding import choose
from shoestring.recipe.requirements import required_extras


@pytest.mark.parametrize(
    ("recipe", "values", "expected"),
    [
        ("temporal", {}, {"temporal"}),
        ("legal", {"lora_r": "4"}, {"legal", "huggingface"}),
        ("temporal", {"optimizer_states": "paged"}, {"temporal", "bitsandbytes"}),
        ("finetune", {"lora_r": "none"}, {"finetune"}),
        ("finetune", {"lora_r": "4", "quantization": "nf4"}, {"finetune", "huggingface", "bitsandbytes"}),
        # An option of the recipe's own.
        ("chart", {"quantization": "nf4"}, {"chart", "bitsandbytes"}),
    ],
)
def test_extras_follow_from_the_recipe_and_its_options(recipe, values, expected):
    loaded, _ = choose(recipe, {"size": "tiny", **values})
    assert required_extras(loaded) == expected
