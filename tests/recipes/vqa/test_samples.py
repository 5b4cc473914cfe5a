import pytest

from shoestring.base.errors import DataError
from shoestring_recipes.vqa.samples import Sample, split


def make_samples(groups: list[str]) -> list[Sample]:
    return [
        Sample(image=group, group=group, question=str(number), answer="a", reasoning="r", kind="OBJECT", weight=1.0)
        for number, group in enumerate(groups)
    ]


def test_an_image_is_in_one_part_only() -> None:
    parts = split(make_samples([str(number % 50) for number in range(200)]))
    groups = {name: {sample.group for sample in part} for name, part in parts.items()}
    assert {name: len(images) for name, images in groups.items()} == {"train": 40, "validation": 5, "test": 5}
    assert len(set().union(*groups.values())) == 50
    assert sum(map(len, parts.values())) == 200


def test_split_depends_only_on_the_names() -> None:
    names = [str(number) for number in range(30)]
    parts, reversed_parts = split(make_samples(names)), split(make_samples(names[::-1]))
    for name in parts:
        assert {sample.group for sample in parts[name]} == {sample.group for sample in reversed_parts[name]}


def test_split_needs_three_images() -> None:
    assert {name: len(part) for name, part in split(make_samples(["a", "b", "c"])).items()} == dict.fromkeys(
        ("train", "validation", "test"), 1
    )
    with pytest.raises(DataError, match="2 images"):
        split(make_samples(["a", "b", "a"]))
