"""The extras that a recipe with its options requires."""

import pytest

from shoestring.recipe import requirements
from shoestring.recipe.finding import choose
from shoestring.recipe.requirements import Requirement, parse_requirement, required_extras, required_packages


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


def test_packages_of_extras_come_from_the_metadata(monkeypatch):
    lines = ["torch>=2.6", "trl>=1.10; extra == 'chart'", 'shoestring[chart]; extra == "all"', "Jinja_2 ; extra == 'x'"]
    monkeypatch.setattr(requirements, "requires", lambda name: lines)
    torch, trl = Requirement(name="torch", minimum="2.6"), Requirement(name="trl", minimum="1.10", extra="chart")
    assert required_packages(()) == (torch,)
    assert required_packages(["chart", "all"]) == (torch, trl)
    assert parse_requirement(lines[3]) == Requirement(name="jinja-2", extra="x")


def test_without_metadata_nothing_is_known(monkeypatch):
    def fail(name):
        raise requirements.PackageNotFoundError

    monkeypatch.setattr(requirements, "requires", fail)
    assert required_packages(["chart"]) == ()
