"""The policy as a folder of peft, with the adapter alone, and of transformers, with the adapter merged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from shoestring.integrations.huggingface.adapters_export import compute_with_saved, save_adapter
from shoestring.integrations.huggingface.saving import quiet
from shoestring.recipe.exports import Exported
from shoestring_recipes.chart.processing import CHAT_TEMPLATE, encode_prompts
from shoestring_recipes.chart.training import conversation

if TYPE_CHECKING:
    from shoestring_recipes.chart.options import Options

TOLERANCES = {"fp32": 1e-3, "fp16": 2e-2, "bf16": 0.1}
"""A merged weight is rounded to the dtype of the frozen weights, which the adapter is not."""

_INPUTS = """\
from inspect import signature

import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer
{imports}
tokenizer = AutoTokenizer.from_pretrained("{folder}")
images = AutoImageProcessor.from_pretrained("{folder}")
{model}
image, question = Image.new("RGB", ({width}, {height}), "white"), "How many bars are there?"  # a chart
content = [{{"type": "image"}}, {{"type": "text", "text": question}}]
messages = [{{"role": "system", "content": {instruction!r}}}, {{"role": "user", "content": content}}]
text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
pixels = images(images=[image], return_tensors="pt")
count = int(pixels["image_grid_thw"].prod()) // images.merge_size**2
tokens = tokenizer(text.replace("<|image_pad|>", "<|image_pad|>" * count), return_tensors="pt")
inputs = {{**tokens, **pixels}}
if "mm_token_type_ids" in signature(base.model.get_rope_index).parameters:  # not in transformers 5.0
    inputs["mm_token_type_ids"] = (tokens["input_ids"] == model.config.image_token_id).int()
output = model.generate(**inputs, do_sample=False, max_new_tokens=64)
print(tokenizer.decode(output[0, tokens["input_ids"].shape[1] :], skip_special_tokens=True))
"""

_MERGED = 'model = base = AutoModelForImageTextToText.from_pretrained("{folder}").eval()\n'
_ADAPTER = """\
base = AutoModelForImageTextToText.from_pretrained("{base}")
model = PeftModel.from_pretrained(base, "{folder}").eval()
"""


def write_adapter(
    model: Any,
    folder: Path,
    samples: Sequence[Sequence[Any]],
    *,
    options: Options,
    processor: Any,
    instruction: str,
    place: str = ".",
) -> Exported:
    """Write the adapter as peft's folder, with the processor; a base with random weights, which nobody has, too.

    `place` is the folder's path in the code that uses it.
    """
    inputs = [encode(processor, rows) for rows in samples]
    expected = _compute(model, inputs)
    base = save_adapter(model, folder, source=options.weights_from)
    _save_processor(processor, folder)
    actual = compute_with_saved(model, folder, lambda: _compute(model, inputs))
    has_own_base = options.weights_from is None
    source = f"{place}/{base}" if has_own_base else base
    notes = [
        "The adapter has no weights of its base."
        + (" `base` has its random weights." if has_own_base else f" Its base is {source}, in {options.weights}.")
    ]
    return Exported(
        compared=list(zip(expected, actual, strict=True)),
        usage=_usage(
            processor, instruction, place, "from peft import PeftModel", _ADAPTER.format(base=source, folder=place)
        ),
        metadata={"library_name": "peft", "pipeline_tag": "image-text-to-text"},
        notes=[*_notes(processor), *notes],
    )


def write_merged(
    model: Any,
    folder: Path,
    samples: Sequence[Sequence[Any]],
    *,
    options: Options,
    processor: Any,
    instruction: str,
    place: str = ".",
) -> Exported:
    """Merge the adapter into the model, and write it as transformers does, with the processor."""
    from transformers import AutoModelForImageTextToText

    auto_model: Any = AutoModelForImageTextToText
    inputs = [encode(processor, rows) for rows in samples]
    expected = _compute(model, inputs)
    with quiet():
        merged = model.merge_and_unload()
        dtype = merged.dtype
        merged.save_pretrained(folder)
        _save_processor(processor, folder)
        del merged
        loaded = auto_model.from_pretrained(folder, dtype=dtype, local_files_only=True).eval()
    return Exported(
        compared=list(zip(expected, _compute(loaded, inputs), strict=True)),
        usage=_usage(processor, instruction, place, "", _MERGED.format(folder=place)),
        metadata={"library_name": "transformers", "pipeline_tag": "image-text-to-text"},
        notes=_notes(processor),
        tolerance=TOLERANCES[options.weights],
    )


def write_both(
    model: Any, folder: Path, samples: Sequence[Sequence[Any]], *, options: Options, processor: Any, instruction: str
) -> Exported:
    """Write the folders `adapter` and `merged`."""
    both = [
        write(
            model,
            folder / name,
            samples,
            options=options,
            processor=processor,
            instruction=instruction,
            place=name,
        )
        for name, write in (("adapter", write_adapter), ("merged", write_merged))
    ]
    adapter, merged = both
    return Exported(
        compared=[*adapter.compared, *merged.compared],
        usage=merged.usage,
        metadata=merged.metadata,
        notes=["`adapter` is a folder of peft, `merged` one of transformers.", *adapter.notes],
        tolerance=merged.tolerance,
    )


def adapter_tensors(model: Any) -> Iterator[Tensor]:
    """Yield the tensors of the adapter, which alone are trained."""
    return (parameter for parameter in model.parameters() if parameter.requires_grad)


def encode(processor: Any, rows: Sequence[Any]) -> Any:
    """Return the model's inputs for the rows."""
    return encode_prompts(processor, [conversation(row) for row in rows])


def _compute(model: Any, inputs: Sequence[Any]) -> list[Tensor]:
    """Return the logits of the first token of each completion."""
    return [model(**batch, logits_to_keep=1).logits for batch in inputs]


def _save_processor(processor: Any, folder: Path) -> None:
    tokenizer = processor.tokenizer
    tokenizer.chat_template = tokenizer.chat_template or CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    processor.image_processor.save_pretrained(folder)


def _usage(processor: Any, instruction: str, place: str, imports: str, model: str) -> str:
    side = int(processor.image_processor.size["longest_edge"] ** 0.5)
    return _INPUTS.format(
        folder=place, imports=f"{imports}\n" if imports else "", model=model, width=side, height=side,
        instruction=instruction,
    )  # fmt: skip


def _notes(processor: Any) -> list[str]:
    least, pixels = (processor.image_processor.size[name] for name in ("shortest_edge", "longest_edge"))
    return [
        f"Images are resized to {'at most ' if least < pixels else ''}{pixels:,} pixels. The prompt is the system "
        "message of the code above and the question; the answer is between `<answer>` and `</answer>`.",
    ]
