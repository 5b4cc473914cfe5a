"""`cloud`: what lies beneath the clouds of an optical satellite image, seen with the help of radar.

GLF-CR (Xu et al., 2022): the radar image guides attention over the optical one and fills in what it cannot show. The
model needs torch alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from shoestring.errors import QuestionError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from shoestring.recipes.cloud.network import Batch


@dataclass(frozen=True, kw_only=True)
class Options:
    """What may be chosen."""

    size: Annotated[Literal["full", "tiny"], "the published size, or some ten thousand parameters"] = "full"
    epochs: Annotated[int, "passes over the training data"] = 30
    effective_batch: Annotated[int, "samples in one update"] = 4
    seed: Annotated[int, "decides initialisation, sample order, crops and dropped paths"] = 42
    crop: Annotated[int, "pixels on a side of what is cut out of an image, a multiple of 16"] = 128
    learning_rate: Annotated[float, "peak"] = 1e-4

    def __post_init__(self) -> None:
        problems = []
        if self.crop < 16 or self.crop % 16:
            problems.append(f"crop={self.crop}: must be a multiple of 16, windows of 8 at half the resolution")
        if self.learning_rate <= 0:
            problems.append(f"learning_rate={self.learning_rate}: must be more than 0")
        if problems:
            raise QuestionError("options of cloud cannot be used", problems=problems)


class Cloud:
    """Removal of clouds from 13 optical bands with the help of 2 radar bands.

    It can be estimated and planned; its data, and with it training, come later.
    """

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()

    def model(self) -> nn.Module:
        from shoestring.recipes.cloud.network import SIZES, CloudRemoval

        return CloudRemoval(SIZES[self.options.size], crop=self.options.crop)

    def batch(self, size: int) -> Batch:
        """Cloudy (size, 13, crop, crop), radar (size, 2, crop, crop) and clear (size, 13, crop, crop), float32."""
        import torch

        from shoestring.recipes.cloud.network import OPTICAL, RADAR

        cloudy, radar, clear = (
            torch.zeros(size, bands, self.options.crop, self.options.crop) for bands in (OPTICAL, RADAR, OPTICAL)
        )
        return cloudy, radar, clear

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean absolute error over all samples, bands and pixels."""
        from torch.nn.functional import l1_loss

        cloudy, radar, clear = batch
        return l1_loss(model(cloudy, radar), clear)

    def optimizer(self, model: nn.Module) -> Optimizer:
        import torch

        return torch.optim.Adam(model.parameters(), lr=self.options.learning_rate)
