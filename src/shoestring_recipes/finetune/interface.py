"""What rows need of a model to become tokens: its tokenizer and chat template, and its configuration.

A run stores them, so that they are those of its training wherever it is continued or its model is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoestring.base.errors import UsageError
from shoestring.integrations.huggingface import configuration, pretrained
from shoestring.integrations.huggingface.saving import quiet
from shoestring_recipes.finetune import building, synthetic, tiny, vocabulary
from shoestring_recipes.finetune.options import Options
from shoestring_recipes.finetune.rendering import Renderer
from shoestring_recipes.finetune.rows import Conversation
from shoestring_recipes.finetune.templates import read_template

_TOKENIZER, _CONFIGURATION = "tokenizer", "config.json"


@dataclass(frozen=True, kw_only=True)
class Interface:
    """The tokenizer and the configurations of a model."""

    tokenizer: Any
    config: Any
    generation_config: Any
    """Its end tokens stop a generation as well; its other values are not used."""

    def longest_prompt(self, answer_tokens: int, *, at_most: int | None = None) -> int | None:
        """Return the most tokens of a prompt to which the model has positions for the answer; None without a limit."""
        positions = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        limits = [at_most, positions - answer_tokens if isinstance(positions, int) else None]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def padding(self) -> int:
        """The token before shorter prompts of a batch, which the model does not see."""
        token, rows = int(self.tokenizer.pad_token_id or 0), vocabulary.rows_of(self.config)
        return token if rows is None or token < rows else 0


def read_interface(options: Options) -> Interface:
    """Return those of the option `model`, with the chat template of the option `template`; without a model tiny ones.

    Raises UsageError if they cannot be read.
    """
    if options.model is None:
        config = tiny.configuration()
        rows = synthetic.conversations().train
        texts = [str(message["content"]) for row in rows if isinstance(row, Conversation) for message in row.messages]
        tokenizer = tiny.train_tokenizer(texts)
    else:
        source = building.find_source(options)
        config, tokenizer = building.read_configuration(source), building.load_tokenizer(source)
    if options.enlarge_vocabulary:
        config = vocabulary.with_rows(config, vocabulary.largest_id(tokenizer) + 1)
    if options.template is not None:
        tokenizer.chat_template = read_template(options.template)
    generation_config = None if options.model is None else building.read_generation_config(source)
    return Interface(tokenizer=tokenizer, config=config, generation_config=generation_config)


def build_renderer(interface: Interface, options: Options) -> Renderer:
    """Return what turns rows into samples of at most `seq_len` tokens.

    Raises UsageError if the model has fewer positions.
    """
    positions = getattr(interface.config.get_text_config(), "max_position_embeddings", None)
    if isinstance(positions, int) and options.seq_len > positions:
        raise UsageError(
            f"seq_len={options.seq_len} is more than the {positions} positions of the model",
            hint=f"--set seq_len={positions}; longer samples are cut",
        )
    stop_ids = getattr(interface.generation_config, "eos_token_id", None)
    return Renderer(
        interface.tokenizer,
        as_chat=options.as_chat,
        train_on=options.train_on,
        seq_len=options.seq_len,
        stop_ids=stop_ids if isinstance(stop_ids, list) else [] if stop_ids is None else [stop_ids],
    )


def save_interface(interface: Interface, folder: Path) -> None:
    """Write the files into `folder`."""
    # Not beside config.json, because transformers would choose the tokenizer's class by the type of the model.
    interface.tokenizer.save_pretrained(folder / _TOKENIZER)
    with quiet():
        interface.config.save_pretrained(folder)
        if interface.generation_config is not None:
            interface.generation_config.save_pretrained(folder)


def load_interface(folder: Path) -> Interface:
    """Return what `save_interface` has written. Raises UsageError if it cannot be read."""
    with pretrained.reading(str(folder), expected="the files that the run has stored"):
        config = configuration.read(str(folder / _CONFIGURATION))
        source = building.Source(label=str(folder), folder=folder / _TOKENIZER)
        return Interface(
            tokenizer=building.load_tokenizer(source),
            config=config,
            generation_config=building.read_generation_config(building.Source(label=str(folder), folder=folder)),
        )
