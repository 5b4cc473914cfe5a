"""A recipe on small images or sounds whose samples are augmented at random, by one of several libraries.

shoestring train benchmarks/randomness/augmented.py --run DIR --set source=albumentations
"""

import os
import random
import signal
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import nn

SAMPLES, SIDE, LENGTH = 24, 16, 2048
stop_at = 0
"""The training process sends itself SIGTERM in this update; 0: never."""


def albumentations_compose():
    import albumentations

    transform = albumentations.Compose(
        [
            albumentations.HorizontalFlip(p=0.5),
            albumentations.RandomBrightnessContrast(p=0.5),
            albumentations.Affine(rotate=(-20, 20), p=0.7),
            albumentations.CoarseDropout(p=0.5),
        ]
    )
    return lambda image: transform(image=image)["image"]


def torchvision_v2():
    _declare_operators_of_torchvision()
    from torchvision.transforms import v2

    transform = v2.Compose([v2.RandomHorizontalFlip(), v2.ColorJitter(0.4, 0.4), v2.RandomErasing(p=0.5)])
    return lambda image: transform(torch.from_numpy(image).permute(2, 0, 1)).permute(1, 2, 0).numpy()


def _declare_operators_of_torchvision():
    """Let a wheel of torchvision for CUDA be imported beside torch for CPUs, which cannot load its operators."""
    global _library
    if not torch.cuda.is_available() and "_library" not in globals():
        _library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def kornia_sequential():
    from kornia import augmentation

    transform = augmentation.AugmentationSequential(
        augmentation.RandomHorizontalFlip(p=0.5), augmentation.ColorJitter(0.4, 0.4, p=0.8), data_keys=["input"]
    )

    def apply(image):
        batch = torch.from_numpy(image).permute(2, 0, 1)[None] / 255
        return transform(batch)[0].permute(1, 2, 0).numpy() * 255

    return apply


def imgaug_sequential():
    # imgaug 0.4.0 uses a dictionary that NumPy 2 has removed.
    np.sctypes = {
        "int": [np.int8, np.int16, np.int32, np.int64],
        "uint": [np.uint8, np.uint16, np.uint32, np.uint64],
        "float": [np.float16, np.float32, np.float64],
        "complex": [np.complex64, np.complex128],
        "others": [bool, object, bytes, str, np.void],
    }
    from imgaug import augmenters

    transform = augmenters.Sequential([augmenters.Fliplr(0.5), augmenters.Multiply((0.6, 1.4))])
    return lambda image: transform.augment_image(image)


def numpy_generator():
    generator = np.random.default_rng()
    return lambda image: image * generator.uniform(0.5, 1.5)


def own_generators():
    """A generator of each kind in an object of its own, seeded once."""
    generators = [np.random.RandomState(1), random.Random(2), torch.Generator().manual_seed(3)]

    def apply(image):
        numbers = generators[0].rand(), generators[1].random(), torch.rand((), generator=generators[2]).item()
        return image * sum(numbers)

    return apply


def audiomentations_compose():
    import audiomentations

    transform = audiomentations.Compose(
        [audiomentations.AddGaussianNoise(p=0.7), audiomentations.Gain(p=0.5), audiomentations.PolarityInversion(p=0.5)]
    )
    return lambda sound: transform(samples=sound, sample_rate=16000)


def fresh_entropy():
    """A new generator for each sample, which nothing outside of it can seed."""
    return lambda image: image * np.random.default_rng().uniform(0.5, 1.5)


SOURCES = {
    "albumentations": albumentations_compose,
    "torchvision": torchvision_v2,
    "kornia": kornia_sequential,
    "imgaug": imgaug_sequential,
    "numpy": numpy_generator,
    "generators": own_generators,
    "audiomentations": audiomentations_compose,
    "entropy": fresh_entropy,
}


@dataclass(frozen=True, kw_only=True)
class Options:
    source: Annotated[str, f"what augments a sample: {', '.join(SOURCES)}"] = "albumentations"
    epochs: Annotated[int, "passes over the samples"] = 3
    effective_batch: Annotated[int, "samples in one update"] = 6
    seed: int = 0


class Augmented:
    def __init__(self, options=None):
        self.options = options or Options()
        self.is_sound = self.options.source == "audiomentations"

    def model(self):
        return nn.Linear(LENGTH if self.is_sound else SIDE * SIDE * 3, 4)

    def batch(self, size):
        return torch.zeros(size, LENGTH if self.is_sound else SIDE * SIDE * 3), torch.zeros(size, dtype=torch.int64)

    def data(self):
        return Samples(SOURCES[self.options.source](), self.is_sound)

    def loss(self, model, batch):
        global updates
        updates += torch.is_grad_enabled()
        if torch.is_grad_enabled() and updates == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return nn.functional.cross_entropy(model(batch[0]), batch[1])


updates = 0


class Samples:
    def __init__(self, augment, is_sound):
        self.augment, self.is_sound = augment, is_sound

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        fixed = np.random.default_rng(index)
        if self.is_sound:
            sample = fixed.standard_normal(LENGTH).astype(np.float32)
            return torch.from_numpy(np.asarray(self.augment(sample), dtype=np.float32)), index % 4
        image = fixed.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        return torch.from_numpy(np.array(self.augment(image), dtype=np.float32)).reshape(-1) / 255, index % 4
