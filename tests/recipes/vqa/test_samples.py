import pytest

from shoestring.errors import DataError
from shoestring.recipes.vqa.samples import Sample, split


def samples(groups: list[str]) -> list[Sample]:
    return [
        Sample(image=group, group=group, question=str(number), answer="a", reasoning="r", kind="OBJECT", weight=1.0)
        for number, group in enumerate(groups)
    ]


def test_no_image_is_on_both_sides() -> None:
    parts = split(samples([str(number % 50) for number in range(200)]))
    groups = {name: {sample.group for sample in part} for name, part in parts.items()}
    assert {name: len(found) for name, found in groups.items()} == {"train": 40, "validation": 5, "test": 5}
    assert len(set().union(*groups.values())) == 50
    assert sum(map(len, parts.values())) == 200


def test_it_depends_on_the_names_alone() -> None:
    names = [str(number) for number in range(30)]
    there, back = split(samples(names)), split(samples(names[::-1]))
    for name in there:
        assert {sample.group for sample in there[name]} == {sample.group for sample in back[name]}


def test_three_images_are_needed() -> None:
    assert {name: len(part) for name, part in split(samples(["a", "b", "c"])).items()} == dict.fromkeys(
        ("train", "validation", "test"), 1
    )
    with pytest.raises(DataError, match="2 images"):
        split(samples(["a", "b", "a"]))
