"""Byte-level tokenizers that are trained in milliseconds, and the chat templates that TRL has."""

import importlib.util
import re
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

CHATML_MARKED = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ message['content'] }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

CHATML_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")

_SPECIAL = re.compile(
    r"<[|\uff5c][^|\uff5c<>{}' ]{1,40}[|\uff5c]>|<(?:start|end)_of_[a-z]+>|\[/?INST\]|<\|[a-z_]+>|<[a-z_]+\|>|</?s>"
)
_ROLES = tuple(f"<|{role}|>" for role in ("system", "user", "assistant", "end"))
_TEXT = ("Answer the question. What is two plus two? Hello, hello! It is four.\n\n\nThat is all, the end.  ",)


def make_tokenizer(
    template: str | None = CHATML,
    special: tuple[str, ...] = CHATML_TOKENS,
    *,
    eos: str | None = "<|im_end|>",
    bos: str | None = None,
    pad: str | None = None,
    adds_bos: bool = False,
    trim: bool = False,
) -> Any:
    """Train a tokenizer. `trim`: tokens stand for their characters without white space, as those of GPT-2 do."""
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        _TEXT,
        trainers.BpeTrainer(
            vocab_size=330,
            special_tokens=list(special),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    if trim:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    create: Any = PreTrainedTokenizerFast
    return create(tokenizer_object=tokenizer, eos_token=eos, bos_token=bos, pad_token=pad, chat_template=template)


def trl_templates() -> dict[str, str]:
    """Return the chat templates that TRL has, by their names. TRL itself is not imported."""
    package = importlib.util.find_spec("trl")
    folders = package.submodule_search_locations if package else None
    files = sorted(Path(folders[0], "chat_templates").glob("*.jinja")) if folders else []
    return {file.stem: file.read_text(encoding="utf-8") for file in files}


def tokenizer_for(template: str) -> Any:
    """Train a tokenizer with the special tokens that occur in a template, and those of its `bos_token` and so on."""
    special = dict.fromkeys(["<bos>", "<eos>", *_ROLES, *_SPECIAL.findall(template)])
    return make_tokenizer(template, tuple(special), eos="<eos>", bos="<bos>")
