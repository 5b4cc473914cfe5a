"""What the images of platforms have of the packages that Shoestring and its recipes need, and what a session brings.

An image is what a session starts with: a Python and its packages. The tables have the packages that anything of
Shoestring requires, from the public build files; a test fails for a requirement that is in neither table. What is
brought is of the version that the tests run with beside the image's packages (`constraints/kaggle.txt`,
`constraints/colab.txt`). torch is never brought: it is gigabytes, and another build may be for another driver.
"""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shoestring.base.packages.requirements import Package, parse_version


@dataclass(frozen=True, kw_only=True)
class AddedPackage:
    """A package that a session gets if its recipe needs it and its image lacks it."""

    version: str
    needs: Mapping[str, str] = field(default_factory=dict)
    """Of its own requirements, those that an image may lack, each with the oldest version that is enough."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """The software that the sessions of a platform start with."""

    platform: str
    """The name of the platform in the catalogue."""
    title: str
    """Its name for people."""
    python: str
    """The version of its Python, such as 3.12: wheels are made for one."""
    date: str
    """The date of its build files, in ISO 8601: it changes every few weeks."""
    sources: tuple[str, ...]
    """The build files."""
    packages: Mapping[str, str | None]
    """The version of each package that is there. None: it is there, but the build files ask for the newest one."""
    additions: Mapping[str, AddedPackage]
    """What is brought if it is needed."""


@dataclass(frozen=True, kw_only=True)
class LackingPackage:
    """A package that is required and that an image does not have, or not in a sufficient version."""

    name: str
    """The name of the package."""
    minimum: str
    """The oldest version that is enough; empty for any."""
    below: str
    """The first version that is too new; empty if none is known."""
    installed: str
    """The version that the image has, which is too old or too new; empty if it has none."""
    version: str
    """The version to bring; empty if none was tested."""
    required_by: tuple[str, ...]
    """What requires it: `shoestring`, one of its extras in brackets, or another package that is brought."""

    @property
    def pin(self) -> str:
        """The package as pip takes it, in the version to bring."""
        return f"{self.name}=={self.version}" if self.version else self.requirement

    @property
    def requirement(self) -> str:
        """What is required, as pip takes it."""
        return Package(name=self.name, minimum=self.minimum, below=self.below).requirement


@dataclass(frozen=True, kw_only=True)
class ImageAnswer:
    """What the image of a target's platform lacks for a recipe with its options."""

    image: Image
    lacks: tuple[LackingPackage, ...]

    @property
    def command(self) -> str:
        """What a person types who installs it by hand; empty if nothing is lacking."""
        # Written so that a shell takes it too if there is no version to bring.
        return f"pip install {' '.join(shlex.quote(package.pin) for package in self.lacks)}" if self.lacks else ""

    @property
    def text(self) -> str:
        """What is lacking and who brings it, as a sentence."""
        if not self.lacks:
            return f"{self.image.title} of {self.image.date} has all packages"
        names = ", ".join(package.requirement if package.installed else package.name for package in self.lacks)
        bring = "kaggle start and the notebook bring" if self.image.platform == "kaggle" else "the notebook brings"
        them = "it" if len(self.lacks) == 1 else "them"
        return f"{self.image.title} of {self.image.date} lacks {names}: {bring} {them}; by hand: {self.command}"

    def json(self) -> dict[str, Any]:
        """Return the answer as JSON.

        Keys:
            platform (text): the name of the platform
            python (text): the version of the image's Python
            date (text): the date of the image's build files, in ISO 8601
            sources (list of texts): the build files
            lacks (list of objects): what is required and absent or too old
            lacks.name (text): the name of the package
            lacks.minimum (text): the oldest version that is enough; empty for any
            lacks.below (text): the first version that is too new; empty if none is known
            lacks.installed (text): the version that the image has, which is too old or too new; empty if it has none
            lacks.version (text): the version that `kaggle start` and notebooks bring; empty if none was tested
            lacks.required_by (list of texts): an extra of Shoestring in brackets, or another package that is brought
            command (text): what to type to install it by hand; empty if nothing is lacking
        """
        return {
            "platform": self.image.platform,
            "python": self.image.python,
            "date": self.image.date,
            "sources": list(self.image.sources),
            "lacks": [
                {
                    "name": package.name,
                    "minimum": package.minimum,
                    "below": package.below,
                    "installed": package.installed,
                    "version": package.version,
                    "required_by": list(package.required_by),
                }
                for package in self.lacks
            ],
            "command": self.command,
        }


_ADDITIONS = {
    "bitsandbytes": AddedPackage(version="0.50.2"),
    "datasets": AddedPackage(version="5.0.1", needs={"pyarrow": "21.0.0"}),
    "gguf": AddedPackage(version="0.19.0"),
    "nupunkt": AddedPackage(version="0.8.0"),
    "pyarrow": AddedPackage(version="26.0.1"),
    "trl": AddedPackage(version="1.16.0", needs={"datasets": "4.7.0", "pyarrow": "21.0.0"}),
}
"""What both images get."""

# fmt: off
IMAGES: Mapping[str, Image] = {image.platform: image for image in (
    Image(
        platform="kaggle", title="Kaggle's image", python="3.12", date="2026-08-12",
        sources=("https://github.com/Kaggle/docker-python at 78aaa43: Dockerfile.tmpl, kaggle_requirements.txt",
                 "https://github.com/googlecolab/backend-info at 1fe257c (2026-05-20), on which it is built"),
        packages={
            "accelerate": "1.13.0", "cloudpickle": "3.1.2", "datasets": "4.0.0", "dill": "0.3.8",
            "filelock": "3.29.0", "fsspec": "2025.3.0",
            "httpx": "0.28.1", "huggingface-hub": "1.11.0", "jinja2": "3.1.6", "matplotlib": "3.10.0",
            "multiprocess": "0.70.16", "numpy": "2.0.2", "nvidia-ml-py": "13.595.45", "packaging": "26.1",
            "pandas": "2.2.2", "peft": "0.19.1", "pillow": "11.3.0", "psutil": "5.9.5", "pyarrow": "18.1.0",
            "pyyaml": "6.0.3", "requests": "2.32.4", "rich": "13.9.4", "safetensors": "0.7.0",
            "scikit-learn": "1.6.1", "six": "1.17.0", "tensorboard": "2.20.0", "tifffile": "2026.4.11",
            "torch": "2.10.0", "tqdm": "4.67.3", "transformers": "5.0.0", "typer": "0.24.2",
            "typing-extensions": "4.15.0", "xxhash": "3.6.0",
            # Kaggle's own list asks for them without a version.
            "onnx": None, "pytorch-lightning": None, "s3fs": None, "torchmetrics": None,
        },
        additions={**_ADDITIONS, "imagecodecs": AddedPackage(version="2026.3.6")},
    ),
    Image(
        platform="colab", title="Colab's image", python="3.13", date="2026-08-19",
        sources=("https://github.com/googlecolab/backend-info at a724079: pip-freeze.gpu.txt",),
        packages={
            "accelerate": "1.14.0", "cloudpickle": "3.1.2", "datasets": "4.0.0", "dill": "0.3.8",
            "filelock": "3.32.3", "fsspec": "2025.3.0",
            "httpx": "0.28.1", "huggingface-hub": "1.27.0", "jinja2": "3.1.6", "matplotlib": "3.10.0",
            "multiprocess": "0.70.16", "numpy": "2.1.3", "nvidia-ml-py": "13.610.43", "packaging": "26.3",
            "pandas": "2.2.3", "peft": "0.20.0", "pillow": "11.3.0", "psutil": "5.9.5", "pyarrow": "18.1.0",
            "pyyaml": "6.0.3", "requests": "2.32.4", "rich": "13.9.4", "safetensors": "0.8.0",
            "scikit-learn": "1.6.1", "six": "1.17.0", "tensorboard": "2.20.0", "tifffile": "2026.8.16",
            "torch": "2.11.0", "tqdm": "4.67.3", "transformers": "5.15.0", "typer": "0.27.1",
            "typing-extensions": "4.16.0", "xxhash": "4.0.1",
        },
        additions={
            **_ADDITIONS,
            "imagecodecs": AddedPackage(version="2026.10.10"),
            "lightning-utilities": AddedPackage(version="0.15.3"),
            "torchmetrics": AddedPackage(version="1.9.0", needs={"lightning-utilities": "0.15.3"}),
        },
    ),
)}
# fmt: on


def lacks(image: Image, packages: Iterable[Package]) -> tuple[LackingPackage, ...]:
    """Return which of the required `packages` an image does not have, with what those require in turn.

    What a recipe requires itself comes before what that needs.
    """
    pending = [(package, f"shoestring[{package.extra}]" if package.extra else "shoestring") for package in packages]
    lacking: dict[str, list[Package]] = {}
    required_by: dict[str, list[str]] = {}
    while pending:
        package, by = pending.pop(0)
        name = package.name
        if has(image, package) or name == "torch":
            continue
        if name not in lacking and name in image.additions:
            needs = image.additions[name].needs.items()
            pending += [(Package(name=other, minimum=minimum), name) for other, minimum in needs]
        lacking.setdefault(name, []).append(package)
        required_by.setdefault(name, []).append(by)
    return tuple(
        LackingPackage(
            name=name,
            minimum=max((package.minimum for package in required), key=parse_version),
            below=min((package.below for package in required if package.below), key=parse_version, default=""),
            installed=image.packages.get(name) or "",
            version=image.additions[name].version if name in image.additions else "",
            required_by=tuple(dict.fromkeys(required_by[name])),
        )
        for name, required in lacking.items()
    )


def has(image: Image, package: Package) -> bool:
    """Return whether an image has a required package in a sufficient version."""
    if package.name not in image.packages:
        return False
    version = image.packages[package.name]
    # Of an unknown version, it was the newest when the image was built.
    return version is None or not replace(package, installed=version, is_complete=True).problem


def image_answer(platform: str, packages: Iterable[Package]) -> ImageAnswer | None:
    """Return what the image of a platform lacks; None for a platform whose image is unknown, or no platform."""
    image = IMAGES.get(platform)
    return ImageAnswer(image=image, lacks=lacks(image, packages)) if image else None
