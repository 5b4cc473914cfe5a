"""The trained model as a folder of peft (the adapter alone), of transformers (merged), or as a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import redirect_stderr
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.base.errors import RunError, UsageError
from shoestring.integrations.huggingface.adapters_export import compute_with_saved, save_adapter
from shoestring.integrations.huggingface.packed import is_packed
from shoestring.integrations.huggingface.saving import quiet
from shoestring.recipe.exports import Exported
from shoestring_recipes.finetune import merging
from shoestring_recipes.finetune.gguf import families, writing
from shoestring_recipes.finetune.merged_files import UnwrittenWeights
from shoestring_recipes.finetune.samples import PairSample, Sample

TOLERANCES = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 0.1}
"""A merged weight is rounded to the dtype of the frozen weights, which the adapter is not."""
GGUF_TOLERANCES = {"F32": 0.0, "F16": 1e-2, "BF16": 0.1, "Q8_0": 0.2}
"""What the rounding of all weights to a type adds. What fewer bits do depends on the model, and is only reported."""
_READ_TOLERANCE = 1e-3
"""The largest difference, as a share of the largest logit, between the model with rounded weights and a GGUF file."""

_COMPARED_TOKENS, _COMPARED_LOGITS = 256, 16
"""The tokens of a sample that the model receives, and at how many of the last ones its logits are compared."""

_USAGE = """\
from transformers import {imports}

tokenizer = AutoTokenizer.from_pretrained(".")
{model}
{inputs}{without_kinds}
output = model.generate(**inputs, do_sample=False, max_new_tokens=64)
print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
"""
_CHAT = """\
messages = [{"role": "user", "content": "Hello!"}]
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, return_tensors="pt")"""
_TEXT = 'inputs = tokenizer("Once upon a time", return_tensors="pt")'
_KINDS = "token_type_ids"
_WITHOUT_KINDS = f"""
del inputs["{_KINDS}"]  # the tokenizer returns them, but the model was trained without"""
# Without dtype="auto", transformers 4.56 reads all weights in fp32.
_ADAPTER = """\
model = AutoModelForCausalLM.from_pretrained("{base}", dtype="auto")
model = PeftModel.from_pretrained(model, ".").eval()"""
_ENLARGED = """
model.resize_token_embeddings({rows})  # the adapter has the weights of the added tokens
model = PeftModel"""
_MERGED = 'model = AutoModelForCausalLM.from_pretrained(".", dtype="auto").eval()'
_GGUF = 'model = AutoModelForCausalLM.from_pretrained(".", gguf_file="{file}").eval()'
_GGUF_WITH_CONFIG = """\
config = AutoConfig.from_pretrained(".")  # of the file alone, transformers does not read all that this model needs
model = AutoModelForCausalLM.from_pretrained(".", gguf_file="{file}", config=config).eval()"""


def bytes_of(format_: str, model: nn.Module, *, source: Path | str | None = None, gguf_type: str = "F16") -> int:
    """Return the bytes of the tensors that a format has of a model; the tokenizer, a few MB, is not in it.

    Only shapes and dtypes are read: the model may be on the meta device or simulated.
    """
    if format_ == "adapter":
        trained = (".lora_", ".modules_to_save.", ".trainable_tokens_delta.")
        written = sum(
            weight.nbytes for name, weight in model.named_parameters() if any(map(name.__contains__, trained))
        )
        return written + (bytes_of("merged", model) if source is None else 0)
    shapes = merging.merged_shapes(model)
    if format_ == "gguf":
        return writing.file_bytes(merging.plain_base(model).config, shapes, gguf_type)
    return sum(torch.Size(shape).numel() for shape in shapes.values()) * merging.stored_dtype(model).itemsize


def write_adapter(
    model: Any,
    folder: Path,
    samples: Sequence[Sequence[Any]],
    *,
    tokenizer: Any,
    source: Path | str | None,
    is_enlarged: bool = False,
) -> Exported:
    """Write the adapter as peft's folder, with the tokenizer; a base with random weights, which nobody has, too.

    `source` is where the base's weights are from: a folder or file, a name on the hub, or None for random weights.
    """
    if not hasattr(model, "peft_config"):
        raise UsageError(
            "the run has trained all weights of the model, so there is no adapter", hint="--to merged has its weights"
        )
    expected = _logits(model, samples)
    base = save_adapter(model, folder, source=source)
    _save_tokenizer(tokenizer, folder)
    actual = compute_with_saved(model, folder, lambda: _logits(model, samples))
    has_packed = any(map(is_packed, model.modules()))
    notes = ["The adapter has no weights of its base." + (" `base` has its random weights." if source is None else "")]
    if source is not None:
        notes = [f"{notes[0]} Its base is {base}" + (", which was in 4 bits (NF4) in training." if has_packed else ".")]
        if isinstance(source, Path):
            notes.append(f"Replace `{base}` by the path of your copy of the base, or by its name on the hub.")
    usage = _usage(tokenizer, _ADAPTER.format(base=base), "AutoModelForCausalLM, AutoTokenizer")
    if is_enlarged and source is not None:
        rows = merging.plain_base(model).get_input_embeddings().weight.shape[0]
        usage = usage.replace("\nmodel = PeftModel", _ENLARGED.format(rows=rows))
    return Exported(
        compared=list(zip(expected, actual, strict=True)),
        usage=f"from peft import PeftModel\n{usage}",
        metadata={"library_name": "peft", "pipeline_tag": "text-generation"},
        notes=notes,
    )


def write_merged(model: Any, folder: Path, samples: Sequence[Sequence[Any]], *, tokenizer: Any) -> Exported:
    """Merge the adapter into the model, and write it as transformers does, with the tokenizer.

    Each layer is merged when it is written, so that this needs memory for one layer. The weights keep their dtype;
    4-bit weights become fp16. `model` is used up, and its memory is free when the files are read back. Raises as
    `merging.merge` does.
    """
    from transformers import AutoModelForCausalLM

    auto_model: Any = AutoModelForCausalLM
    expected, notes = _logits(model, samples), _merging_notes(model)
    unwritten = UnwrittenWeights()
    merged = merging.merge(model, unwritten.add)
    dtype = merged.dtype
    with quiet():
        unwritten.save(merged, folder)
        _save_tokenizer(tokenizer, folder)
        merged.to("meta")
        loaded = auto_model.from_pretrained(folder, dtype=dtype, local_files_only=True).eval()
    return Exported(
        compared=list(zip(expected, _logits(loaded, samples), strict=True)),
        usage=_usage(tokenizer, _MERGED, "AutoModelForCausalLM, AutoTokenizer"),
        metadata={"library_name": "transformers", "pipeline_tag": "text-generation"},
        notes=notes,
        tolerance=TOLERANCES[dtype],
    )


def write_gguf(
    model: Any,
    folder: Path,
    samples: Sequence[Sequence[Any]],
    *,
    tokenizer: Any,
    gguf_type: str = "F16",
    name: str = "model",
) -> Exported:
    """Merge the adapter into the model and write it as a GGUF file, with the tokenizer's own files beside it.

    `gguf_type` is one of `options.GgufType`, `name` is what programs show of the model. `model` is used up as by
    `write_merged`. What transformers reads from the file is compared with the trained model, and, without a tolerance
    for rounding, with the model whose weights are rounded to the type.

    Raises RunError if the file differs from that, and as `merging.merge` and `writing.write_file` do.
    """
    families.find_family(merging.plain_base(model).config)  # before the merging, which takes longer
    expected, notes = _logits(model, samples), _merging_notes(model)
    merged = merging.merge(model)
    file = f"model-{gguf_type}.gguf"
    with quiet():
        further_notes = writing.write_file(folder / file, merged, tokenizer, type_name=gguf_type, name=name)
        rounded = _logits(merged, samples)
        _save_tokenizer(tokenizer, folder)
        config, dtype = merged.config, merged.dtype
        merged.to("meta")
        loaded, is_alone = _read_gguf(folder, file, config, dtype)
    actual = _logits(loaded, samples)
    _require_equal(rounded, actual, file)
    imports = "AutoModelForCausalLM, AutoTokenizer" if is_alone else "AutoConfig, AutoModelForCausalLM, AutoTokenizer"
    usage = (_GGUF if is_alone else _GGUF_WITH_CONFIG).format(file=file)
    return Exported(
        compared=list(zip(expected, actual, strict=True)),
        usage=_usage(tokenizer, usage, imports),
        metadata={"library_name": "gguf", "pipeline_tag": "text-generation"},
        notes=[*notes, *further_notes, f"llama.cpp and programs built on it need {file} alone: `llama-cli -m {file}`."],
        tolerance=TOLERANCES[dtype] + GGUF_TOLERANCES.get(gguf_type, math.inf),
    )


def _read_gguf(folder: Path, file: str, config: Any, dtype: torch.dtype) -> tuple[Any, bool]:
    """Return the model that transformers reads from the file, and whether it needs nothing besides.

    transformers does not read some facts from the header that llama.cpp does: a scaled context, biases, sizes of heads.
    If the model needs them, its configuration is written beside the file.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    auto_model: Any = AutoModelForCausalLM
    header: Any = AutoConfig.from_pretrained(folder, gguf_file=file)
    lost = [
        name for name in ("attention_bias", "mlp_bias") if getattr(config, name, False) != getattr(header, name, False)
    ]
    is_alone = not lost and all(read(config) == read(header) for read in (families.rope, families.head_size))
    options = {} if is_alone else {"config": config}
    if not is_alone:
        config.save_pretrained(folder)
    with redirect_stderr(StringIO()):  # a progress bar that cannot be switched off
        return auto_model.from_pretrained(folder, gguf_file=file, dtype=dtype, **options).eval(), is_alone


def _require_equal(expected: Sequence[Tensor], actual: Sequence[Tensor], file: str) -> None:
    """Raise RunError if the logits of a file differ. Those that are not finite are left to who exports any format."""
    largest = max(float(logits.abs().max()) for logits in expected)
    difference = max(float((read - logits).abs().max()) for logits, read in zip(expected, actual, strict=True))
    if math.isfinite(largest) and not difference <= _READ_TOLERANCE * largest:
        raise RunError(
            f"the logits of {file} as transformers reads it differ by {difference:.3g}, where the largest is "
            f"{largest:.3g}, from those of the model with the same rounded weights",
            hint="export --to merged instead; this is a defect of Shoestring or of transformers, please report it",
        )


def _logits(model: Any, samples: Sequence[Sequence[Sample | PairSample]]) -> list[Tensor]:
    """Return the logits after the last tokens of the samples, (tokens, vocabulary) for each list of samples."""
    return [_batch_logits(model, [_tokens(sample) for sample in batch]) for batch in samples]


def _tokens(sample: Sample | PairSample) -> Tensor:
    tokens = (sample.chosen if isinstance(sample, PairSample) else sample).tokens
    return torch.from_numpy(tokens[:_COMPARED_TOKENS].astype("int64"))


@torch.no_grad()
def _batch_logits(model: Any, rows: list[Tensor]) -> Tensor:
    # Padded by position, because the padding token may be one that the samples have.
    pad = partial(nn.utils.rnn.pad_sequence, batch_first=True)
    device = next(model.parameters()).device
    tokens, mask = pad(rows).to(device), pad([torch.ones_like(row) for row in rows]).to(device)
    logits = model(input_ids=tokens, attention_mask=mask, use_cache=False).logits
    last_logits = [row_logits[: len(row)][-_COMPARED_LOGITS:] for row, row_logits in zip(rows, logits, strict=True)]
    return torch.cat(last_logits).float().cpu()


def _save_tokenizer(tokenizer: Any, folder: Path) -> None:
    with quiet():
        tokenizer.save_pretrained(folder)


def _usage(tokenizer: Any, model: str, imports: str) -> str:
    inputs = _CHAT if tokenizer.chat_template else _TEXT
    # transformers 4.56 returns them from every tokenizer that has no class of its own.
    without_kinds = _WITHOUT_KINDS if _KINDS in tokenizer.model_input_names else ""
    return _USAGE.format(imports=imports, model=model, inputs=inputs, without_kinds=without_kinds)


def _merging_notes(model: Any) -> list[str]:
    if not any(map(is_packed, model.modules())):
        return []
    return [
        "The base was in 4 bits (NF4) in training. These weights are its unpacked 4-bit weights with the adapter, "
        "rounded to fp16: the model that was trained and evaluated, not the adapter on the original weights."
    ]
