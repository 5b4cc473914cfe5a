"""What transformers 4.56 to 5.23 name differently, or do differently.

Code that is the same for all of these versions is elsewhere. A condition here is on what a version has, not on its
number.
"""

from __future__ import annotations

import functools
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


def has_rotary_positions(config: Any) -> bool:
    """Return whether a model has rotary positions: `rope_parameters`, which 4.56 calls `rope_theta`."""
    return bool(getattr(config, "rope_parameters", None) or getattr(config, "rope_theta", None))


def unread_positions(config: Any) -> dict[str, Any] | None:
    """Return the rotary positions of a configuration's file that this version takes no notice of; None if it has none.

    transformers 5 writes `rope_parameters` alone. 4.56 keeps that field without using it: `rope_theta` and
    `rope_scaling`, which it does use, have their defaults then.
    """
    text = getattr(config, "text_config", config)
    parameters = getattr(text, "rope_parameters", None)
    if not parameters or not hasattr(text, "rope_theta"):
        return None
    parameters = parameters.get("full_attention", parameters)  # of Gemma 3, by the kind of layer
    written = {"rope_type": "default", "rope_theta": text.rope_theta, **parameters}
    used = {"rope_type": "default", "rope_theta": text.rope_theta, **(getattr(text, "rope_scaling", None) or {})}
    return None if written == used else dict(parameters)


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


def without_head(model: Any) -> Any:
    """Return the part of a causal language model that computes the hidden states of which its head makes logits.

    `base_model` of Gemma 3 and Llama 4 in 4.56 is the model itself: `base_model_prefix` names a part that only their
    models of images and texts have.
    """
    body = model.base_model
    return model.get_decoder() if body is model else body


def permit_image_token_at_the_end() -> None:
    """Let a text end with the token that begins an image, for Qwen2.5-VL.

    A model that writes may choose that token as its last one. `Qwen2_5_VLModel.get_rope_index` of 4.56 and 5.0 looks at
    the token after it and raises IndexError. It gets the token that ends an image instead, whose position is the same.
    The method of the class is replaced: one of an object would keep the model, and its memory, in a cycle.
    """
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel

    model_class: Any = Qwen2_5_VLModel
    original = model_class.get_rope_index
    if hasattr(original, "__wrapped__") or "mm_token_type_ids" in inspect.signature(original).parameters:
        return

    @functools.wraps(original)
    def get_rope_index(model: Any, input_ids: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        if input_ids is not None:
            following = input_ids.roll(-1, dims=1)
            begins = (following == model.config.image_token_id) | (following == model.config.video_token_id)
            begins[:, -1] = False
            is_alone = (input_ids == model.config.vision_start_token_id) & ~begins
            input_ids = input_ids.masked_fill(is_alone, model.config.vision_end_token_id)
        return original(model, input_ids, *args, **kwargs)

    model_class.get_rope_index = get_rope_index
