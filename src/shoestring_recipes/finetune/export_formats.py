"""The formats of exports, which are known without importing torch: a plan asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.recipe.exports import Exported, Format

if TYPE_CHECKING:
    from torch import nn


def formats(
    *,
    adapted: bool,
    tokenizer: Callable[[], Any],
    source: Path | str | None,
    is_enlarged: bool = False,
    gguf_type: str = "F16",
) -> dict[str, Format]:
    """Return the formats of a trained model: `merged` and `gguf`, and `adapter` if it is `adapted` by peft.

    `tokenizer` returns the tokenizer when it is needed, `source` is where the base's weights are from (None: random).
    `is_enlarged` says that rows were added to its embedding.
    """

    def format_of(name: str, **options: Any) -> Format:
        def write(model: nn.Module, folder: Path, samples: Sequence[Any]) -> Exported:
            from shoestring_recipes.finetune import export

            write_format: Callable[..., Exported] = getattr(export, f"write_{name}")
            return write_format(model, folder, samples, tokenizer=tokenizer(), **options)

        def size(model: nn.Module) -> int:
            from shoestring_recipes.finetune.export import bytes_of

            return bytes_of(name, model, source=source, gguf_type=gguf_type)

        return Format(write=write, size=size, takes_adapters=True)

    adapter_format = {"adapter": format_of("adapter", source=source, is_enlarged=is_enlarged)} if adapted else {}
    return {**adapter_format, "merged": format_of("merged"), "gguf": format_of("gguf", gguf_type=gguf_type)}
