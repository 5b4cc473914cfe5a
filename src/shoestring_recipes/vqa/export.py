"""The student as three models of transformers with their tokenizers, and the fusion between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers import AutoModel, AutoModelForSeq2SeqLM, BlipVisionModel, PreTrainedTokenizerFast

from shoestring.integrations.huggingface.saving import quiet
from shoestring.recipe.exports import Exported
from shoestring.training.checkpoint.files import json_text, write_file, write_text
from shoestring.training.checkpoint.mapped import MappedFile
from shoestring.training.checkpoint.tensors import serialize
from shoestring_recipes.vqa.images import DEVIATION, MEAN
from shoestring_recipes.vqa.student import Batch, Student
from shoestring_recipes.vqa.tokens import FIRST, MARKERS, PretrainedTokenizer, Tokenizer, VocabularyTokenizer

if TYPE_CHECKING:
    from shoestring_recipes.vqa.parts import Source

FUSION = "fusion.safetensors"

_USAGE = """\
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.nn import Linear, ReLU, Sequential
from transformers import AutoImageProcessor, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, BlipVisionModel
from transformers.modeling_outputs import BaseModelOutput

images, vision = AutoImageProcessor.from_pretrained("vision"), BlipVisionModel.from_pretrained("vision").eval()
words, reader = AutoTokenizer.from_pretrained("text"), AutoModel.from_pretrained("text").eval()
texts, writer = AutoTokenizer.from_pretrained("writer"), AutoModelForSeq2SeqLM.from_pretrained("writer").eval()
fusion = Sequential(Linear({features}, {features}), ReLU(), Linear({features}, {width}), ReLU())
fusion.load_state_dict({{key.replace("3.", "2."): value for key, value in load_file("fusion.safetensors").items()}})


@torch.no_grad()
def answer(image, question):
    pixels = images(images=[image.convert("RGB")], return_tensors="pt")["pixel_values"]
    tokens = words(question, truncation=True, max_length={q_len}, return_tensors="pt")
    tokens.pop("token_type_ids", None)
    features = vision(pixel_values=pixels).last_hidden_state.mean(1), reader(**tokens).last_hidden_state[:, 0]
    context = writer.encoder(inputs_embeds=fusion(torch.cat(features, -1))[:, None]).last_hidden_state
    start = torch.tensor([[writer.config.decoder_start_token_id, *{beginning}]])
    output = writer.generate(
        encoder_outputs=BaseModelOutput(last_hidden_state=context),
        attention_mask=torch.ones(1, 1, dtype=torch.int64),
        decoder_input_ids=start,
        num_beams={beams},
        do_sample=False,
        max_new_tokens={new_tokens},
    )
    return texts.decode(output[0, 1:], skip_special_tokens={skips}, clean_up_tokenization_spaces=False)


print(answer(Image.new("RGB", (64, 64), "white"), "Trong hình là số mấy?"))
"""


def write_parts(
    model: Student,
    folder: Path,
    batches: Sequence[Batch],
    *,
    source: Source,
    lengths: tuple[int, int],
    beams: int,
    dropout: tuple[float, float],
) -> Exported:
    """Write the folders `vision`, `text` and `writer`, and the weights of the fusion."""
    from shoestring_recipes.vqa.texts import BEGIN

    tokenizers = {"text": source.load_tokenizer("text"), "writer": source.load_tokenizer("writer")}
    with quiet():
        for name in ("vision", "text", "writer"):
            getattr(model, name).save_pretrained(folder / name)
        for name, tokenizer in tokenizers.items():
            as_library_tokenizer(tokenizer, begins=name == "text").save_pretrained(folder / name)
        _write_image_processor(folder / "vision", source.load_configuration("vision").image_size)
        write_file(folder / FUSION, serialize(model.fusion.state_dict(), {"format": "pt"}))
        loaded = _load(folder, dropout)
    beginning = tokenizers["writer"].encode(BEGIN)
    has_own = isinstance(tokenizers["writer"], VocabularyTokenizer)
    markers = (
        ""
        if has_own
        else " Each is a sentinel of the tokenizer: "
        + ", ".join(f"`{marker!r}` <extra_id_{number}>" for number, marker in enumerate(MARKERS))
    )
    width = model.writer.config.d_model
    features = model.vision.config.hidden_size + model.text.config.hidden_size
    return Exported(
        compared=[
            pair for batch in batches for pair in zip(_compute(model, batch), _compute(loaded, batch), strict=True)
        ],
        usage=_USAGE.format(
            features=features,
            width=width,
            q_len=lengths[0],
            beginning=beginning,
            beams=beams,
            new_tokens=max(1, lengths[1] - len(beginning)),
            skips=has_own,
        ),
        metadata={"library_name": "transformers", "pipeline_tag": "visual-question-answering", "language": "vi"},
        notes=[
            f"`{FUSION}` has two linear layers, `0` and `3`, each followed by ReLU: of the mean of the tokens of "
            f"`vision` and the first token of `text` ({features} values) they make the only input of the encoder of "
            f"`writer` ({width} values).",
            "The text has the answer between `<answer>` and `</answer>` and the reason between `<reasoning>` and "
            f"`</reasoning>`.{markers}",
        ],
    )


def as_library_tokenizer(tokenizer: Tokenizer, *, begins: bool) -> Any:
    """Return a tokenizer of transformers with the same tokens; with `begins` it adds the begin and end tokens."""
    if isinstance(tokenizer, PretrainedTokenizer):
        return tokenizer.library_tokenizer
    assert isinstance(tokenizer, VocabularyTokenizer)
    from tokenizers import Regex, decoders, models, pre_tokenizers, processors
    from tokenizers import Tokenizer as Library

    names = {"<unk>": tokenizer.unknown, "</s>": tokenizer.end, "<pad>": tokenizer.pad}
    if tokenizer.begin != tokenizer.pad:
        names["<s>"] = tokenizer.begin
    unused = {f"<unused{number}>": number for number in range(FIRST) if number not in names.values()}
    names.update(unused)
    pieces = {piece: number for number, piece in enumerate(tokenizer.pieces, start=FIRST)}
    library: Any = Library(models.WordLevel({**pieces, **names}, unk_token="<unk>"))
    longest_first = "|".join(map(_escape, sorted(pieces, key=len, reverse=True)))
    library.pre_tokenizer = pre_tokenizers.Split(Regex(rf"{longest_first}|[\s\S]"), behavior="isolated")
    library.decoder = decoders.Fuse()
    if begins:
        library.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", tokenizer.begin), ("</s>", tokenizer.end)]
        )
    create: Any = PreTrainedTokenizerFast
    special = {
        "unk_token": "<unk>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "additional_special_tokens": list(unused),
    }
    return create(tokenizer_object=library, **special, **({"bos_token": "<s>"} if "<s>" in names else {}))


def _escape(piece: str) -> str:
    """Escape the characters with a meaning in regular expressions; the library has other escapes than Python."""
    return re.sub(r"([][\\.^$*+?{}()|/&~#-])", r"\\\1", piece)


def _write_image_processor(folder: Path, side: int) -> None:
    processor = {
        "image_processor_type": "BlipImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"height": side, "width": side},
        "resample": 3,  # bicubic
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": MEAN.flatten().tolist(),
        "image_std": DEVIATION.flatten().tolist(),
    }
    write_text(folder / "preprocessor_config.json", json_text(processor))


def _load(folder: Path, dropout: tuple[float, float]) -> Student:
    """Return a student of the files in the folder."""
    auto_model: Any = AutoModel
    auto_writer: Any = AutoModelForSeq2SeqLM
    student = Student(
        vision=BlipVisionModel.from_pretrained(folder / "vision", local_files_only=True),
        text=auto_model.from_pretrained(folder / "text", local_files_only=True),
        writer=auto_writer.from_pretrained(folder / "writer", local_files_only=True),
        dropout=dropout,
    )
    student.fusion.load_state_dict(dict(MappedFile(folder / FUSION)))
    return student.eval()


def _compute(model: Student, batch: Batch) -> list[Tensor]:
    """Return the input of the decoder, and the losses of the tokens of the whole text."""
    context = model.encode(batch.images, batch.questions, batch.mask)
    return [context, model.token_losses(context, batch.whole)]
