"""What transformers 4.56 to 5.23 name differently, or do differently.

Code that is the same for all of these versions is elsewhere. A condition here is on what a version has, not on its
number.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import Tensor


def image_processor_class() -> Any:
    """Return the class of Qwen2-VL's image processor that needs no torchvision."""
    module = _image_processing()
    return getattr(module, "Qwen2VLImageProcessorPil", None) or module.Qwen2VLImageProcessor


def resize_for_qwen(height: int, width: int, **options: int) -> tuple[int, int]:
    """Return the height and the width of an image after Qwen2-VL's processor (transformers' `smart_resize`)."""
    size: tuple[int, int] = _image_processing().smart_resize(height, width, **options)
    return size


def _image_processing() -> Any:
    """Return the module of the processor that computes with Pillow and numpy.

    In 5.15 and later, `image_processing_qwen2_vl` is the processor that needs torchvision, and this one has a module of
    its own; in 4.56 and 5.0 it is `image_processing_qwen2_vl`, and the other one `image_processing_qwen2_vl_fast`.
    """
    own = "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl"
    return import_module(own if find_spec(own) else "transformers.models.qwen2_vl.image_processing_qwen2_vl")


def find_positions(model: Any, tokens: Tensor, *, is_image: Tensor, grids: Tensor, mask: Tensor) -> Tensor:
    """Return the positions (3, n, length) of the tokens of texts with images for `model`, a `Qwen2_5_VLModel`.

    `get_rope_index` of 4.56 and 5.0 finds the images by the tokens before them; that of 5.15 and later is told by
    `mm_token_type_ids`, which is required.
    """
    kinds: dict[str, Tensor] = {}
    if "mm_token_type_ids" in inspect.signature(model.get_rope_index).parameters:
        kinds["mm_token_type_ids"] = is_image.int()
    positions, _ = model.get_rope_index(tokens, image_grid_thw=grids, attention_mask=mask, **kinds)
    result: Tensor = positions
    return result
