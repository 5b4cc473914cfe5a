"""What is recorded of a convolution, for estimates of its time. Does not import torch."""

from __future__ import annotations

from typing import NamedTuple


class ConvolutionShape(NamedTuple):
    """The forward pass of a convolution as a matrix product for each group, and its images.

    Sizes of one dimension (a sequence) are the widths of images of height one.
    """

    groups: int
    rows: int
    """The positions of the result, of all samples."""
    columns: int
    """The channels of the result, in one group."""
    depth: int
    """The positions of the kernel times the channels of the input, in one group."""
    kernel_height: int
    kernel_width: int
    height: int
    width: int
    """Height and width of the result."""
    stride_height: int
    stride_width: int
    channels_last: int
    """1 if cuDNN computes it channels last (NHWC) without transposing, 0 if the images are channels first."""

    @property
    def product(self) -> tuple[int, int, int, int]:
        """Batch size, rows, columns and depth."""
        return self[:4]

    @property
    def kernel(self) -> tuple[int, int]:
        return self.kernel_height, self.kernel_width

    @property
    def stride(self) -> tuple[int, int]:
        return self.stride_height, self.stride_width

    @property
    def channels(self) -> int:
        """The channels of the input, in one group."""
        return self.depth // (self.kernel_height * self.kernel_width)

    @property
    def positions(self) -> int:
        """The positions of the input, of all samples, without those that only padding covers."""
        return self.rows * self.stride_height * self.stride_width

    @property
    def values(self) -> int:
        """The number of values of the input."""
        return self.groups * self.channels * self.positions

    @property
    def covered_values(self) -> int:
        """The number of values of the input that the kernel covers: fewer than all if it is smaller than the stride."""
        return self.groups * self.channels * (self.rows if self.kernel == (1, 1) else self.positions)

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.columns == 1
