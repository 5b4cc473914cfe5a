"""The tables of what an image has and of what is brought to it."""

import importlib.metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from shoestring.base.packages.requirements import Package, required
from shoestring.hardware.images import IMAGES, AddedPackage, Image, has, lacks
from shoestring.hardware.targets import known
from shoestring.recipe.installed import built_in_names

CONSTRAINTS = Path(__file__).parents[2] / "constraints"
EXTRAS = (*built_in_names(), "huggingface", "bitsandbytes")
images = pytest.mark.parametrize("image", IMAGES.values(), ids=list(IMAGES))


def names(image, *extras):
    return [package.name for package in lacks(image, required(extras))]


@images
def test_each_platform_is_one_of_the_catalogue(image):
    assert image.platform in {target.platform.name for target in known().values() if target.platform}


@images
def test_every_requirement_is_in_a_table_and_what_is_brought_is_sufficient(image):
    for requirement in required(EXTRAS):
        assert requirement.name in image.packages or requirement.name in image.additions, requirement
    for package in lacks(image, required(EXTRAS)):
        brought = Image(**{**vars(image), "packages": {package.name: package.version}})
        wanted = Package(name=package.name, minimum=package.minimum, below=package.below)
        assert package.version and has(brought, wanted), package


@images
def test_versions_are_those_that_the_tests_run_with(image):
    lines = (CONSTRAINTS / f"{image.platform}.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    assert f"Python {image.python}" in lines[0]
    assert {name: pins[name] for name in image.additions} == {
        name: package.version for name, package in image.additions.items()
    }
    # What the image has is tested in its version, unless the tests need a newer one for something that is brought.
    newer = {"datasets", "pyarrow", "fsspec", "dill", "multiprocess", *image.additions}
    ours = {name: version for name, version in image.packages.items() if version and name in pins.keys() - newer}
    assert ours == {name: pins[name] for name in ours}


@images
def test_needs_are_those_of_the_packages_metadata(image):
    """Of the packages that are installed here in the version to bring: in `make test STACK=kaggle` of all."""
    for name, brought in image.additions.items():
        try:
            metadata = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if metadata.version != brought.version:
            continue
        for text in metadata.requires or ():
            requirement = Requirement(text)
            if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
                continue
            other = canonicalize_name(requirement.name)
            version = image.packages.get(other, "0")
            if version is not None and not requirement.specifier.contains(version):
                minimum = brought.needs[other]
                assert f">={minimum}" in str(requirement.specifier), f"{name} needs {text}"
                assert requirement.specifier.contains(image.additions[other].version)


def test_what_each_recipe_lacks():
    kaggle, colab = IMAGES["kaggle"], IMAGES["colab"]
    assert [names(kaggle, recipe) for recipe in ("temporal", "vqa", "huggingface")] == [[], [], []]
    assert names(kaggle, "chart") == ["trl", "datasets", "pyarrow"]
    assert names(kaggle, "finetune", "bitsandbytes") == ["bitsandbytes", "gguf"]
    assert names(kaggle, "legal") == ["nupunkt"] and names(kaggle, "cloud") == ["imagecodecs"]
    assert names(colab, "temporal") == ["torchmetrics", "lightning-utilities"]


def test_what_is_brought_needs_in_turn():
    image = Image(
        platform="p",
        title="An image",
        python="3.12",
        date="2026-01-01",
        sources=(),
        packages={"torch": "2.0", "rows": "1.9", "speed": None},
        additions={
            "trainer": AddedPackage(version="3.0", needs={"rows": "1.10", "files": "", "speed": "9"}),
            "rows": AddedPackage(version="2.0", needs={"files": "4", "torch": "2.5"}),
            "files": AddedPackage(version="5.0"),
        },
    )
    trainer, rows, files = lacks(image, [Package(name="trainer", minimum="2", extra="chart")])
    assert (trainer.required_by, trainer.installed, trainer.pin) == (("shoestring[chart]",), "", "trainer==3.0")
    assert (rows.minimum, rows.installed, rows.version, rows.required_by) == ("1.10", "1.9", "2.0", ("trainer",))
    assert (files.minimum, files.required_by) == ("4", ("trainer", "rows"))
    new, *_ = lacks(image, [Package(name="rows", minimum="1", below="1.5")])
    assert (new.installed, new.below, new.requirement) == ("1.9", "1.5", "rows>=1,<1.5")
