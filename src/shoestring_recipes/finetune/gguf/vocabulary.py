"""The vocabulary of a tokenizer as llama.cpp reads it from a GGUF file, so that it makes the same tokens of a text.

A file names the kind of a tokenizer (`gpt2` for byte-level BPE, `llama` for SentencePiece) and how it splits a text
before; llama.cpp has the rules of every name in its code. The name is found by comparing the rules of the tokenizer
with those (`llama-vocab.cpp` of github.com/ggml-org/llama.cpp); a tokenizer with other rules is refused. The converter
there compares a hash of the tokens of one text instead, which only knows published vocabularies.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoestring.base.errors import UsageError
from shoestring_recipes.finetune.gguf import sentencepiece

if TYPE_CHECKING:
    from gguf import GGUFWriter

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""The types of tokens (`gguf.TokenType`)."""

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_OTHER_RULES = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_BYTES, _WORDS_IN_BYTES = ("ByteLevel", False), ("ByteLevel", True)
_SPLITS: dict[tuple[Any, ...], str] = {
    # The steps before the merges, and whether a word that is a token is left whole (`ignore_merges`).
    (_WORDS_IN_BYTES, False): "gpt-2",
    (("Digits", True), _WORDS_IN_BYTES, False): "smollm",
    (("Split", _WORDS + r"|\p{N}" + _OTHER_RULES), _BYTES, False): "qwen2",
    (("Split", _WORDS + r"|\p{N}{1,3}" + _OTHER_RULES), _BYTES, True): "llama-bpe",
    (("Split", _WORDS + r"|\p{N}{1,3}" + _OTHER_RULES), _BYTES, False): "smaug-bpe",
}


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What a GGUF file has of a tokenizer."""

    model: str
    pre: str
    tokens: list[str]
    types: list[int]
    merges: list[str] | None = None
    """Of byte-level BPE."""
    scores: list[float] | None = None
    """Of SentencePiece: the pair of tokens that makes the token with the highest score is merged first."""
    ids: dict[str, int]
    """Special tokens by the name of the writer's method: `bos`, `eos`, ..."""
    adds_bos: bool
    adds_eos: bool
    adds_space: bool
    chat_template: str | None
    notes: tuple[str, ...] = ()

    def write(self, writer: GGUFWriter) -> None:
        """Add the vocabulary to a file."""
        writer.add_tokenizer_model(self.model)
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        if self.merges is not None:
            writer.add_token_merges(self.merges)
        if self.scores is not None:
            writer.add_token_scores(self.scores)
        for name, token in self.ids.items():
            getattr(writer, f"add_{name}_token_id")(token)
        writer.add_add_bos_token(self.adds_bos)
        writer.add_add_eos_token(self.adds_eos)
        writer.add_add_space_prefix(self.adds_space)
        if self.chat_template:
            writer.add_chat_template(self.chat_template)


def read_vocabulary(tokenizer: Any, *, rows: int, stops: list[int]) -> Vocabulary:
    """Return the vocabulary of a tokenizer of transformers.

    `rows` is the number of tokens that the embedding has; tokens beyond the tokenizer's are marked as unused. `stops`
    are the tokens that end a generation.

    Raises UsageError if llama.cpp would make other tokens of a text.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UsageError(
            f"the tokenizer is a {type(tokenizer).__name__} without tokenizer.json, which gguf is made from",
            hint="use a tokenizer of the tokenizers library",
        )
    description = json.loads(backend.to_str())
    model = description["model"]
    problems = _foreign_parts(description)
    tokens, types = _read_tokens(tokenizer, description, rows, problems)
    merges: list[str] | None = None
    scores: list[float] | None = None
    notes: list[str] = []
    if model["type"] == "BPE" and model.get("byte_fallback"):
        kind, pre = "llama", "default"
        problems += sentencepiece.problems(description)
        scores = [] if problems else sentencepiece.scores(model, tokens)
    else:
        kind, pre = "gpt2", _find_split(description, problems)
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model.get("merges", [])]
        if description.get("normalizer"):
            notes.append("The tokenizer normalizes texts to NFC, which llama.cpp does not.")
    if problems:
        raise UsageError(
            "the tokenizer cannot be exported to gguf: llama.cpp would make other tokens of the same text",
            problems=problems[:20],
            hint="export --to merged, and use a program that reads tokenizer.json",
        )
    plain, special = tokenizer("a", add_special_tokens=False), tokenizer("a")
    added = len(special["input_ids"]) > len(plain["input_ids"])
    return Vocabulary(
        model=kind,
        pre=pre,
        tokens=tokens,
        types=types,
        merges=merges,
        scores=scores,
        ids=_special_ids(tokenizer, stops),
        adds_bos=added and special["input_ids"][0] == tokenizer.bos_token_id,
        adds_eos=added and special["input_ids"][-1] == tokenizer.eos_token_id,
        adds_space=kind == "llama",
        chat_template=tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else None,
        notes=tuple(notes),
    )


def _foreign_parts(description: dict[str, Any]) -> list[str]:
    """Return what the tokenizer has that no tokenizer of llama.cpp does."""
    model = description["model"]
    problems = [] if model["type"] == "BPE" else [f"its model is {model['type']}, not BPE"]
    problems += [
        f"its model has {name}={model[name]!r}"
        for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
        if model.get(name)
    ]
    return problems + [
        f"the added token {token['content']!r} takes the spaces beside it, or stands only as a whole word"
        for token in description["added_tokens"]
        if token["lstrip"] or token["rstrip"] or token["single_word"]
    ]


def _read_tokens(
    tokenizer: Any, description: dict[str, Any], rows: int, problems: list[str]
) -> tuple[list[str], list[int]]:
    by_id = {index: token for token, index in tokenizer.get_vocab().items()}
    if max(by_id) >= rows:
        problems.append(f"it has the token {max(by_id)}, but the model has only {rows} tokens")
    added = {token["id"]: token for token in description["added_tokens"]}
    is_sentencepiece = bool(description["model"].get("byte_fallback"))
    tokens = [by_id.get(index, f"[PAD{index}]") for index in range(rows)]
    types = []
    for index, token in enumerate(tokens):
        if index not in by_id:
            kind = UNUSED
        elif is_sentencepiece and sentencepiece.is_byte(token):
            kind = BYTE
        elif is_sentencepiece and token == description["model"].get("unk_token"):
            kind = UNKNOWN
        elif index not in added:
            kind = NORMAL
        # Some models have not marked such tokens as special; llama.cpp's converter takes them for it, too.
        elif added[index]["special"] or (token.startswith("<|") and token.endswith("|>")):
            kind = CONTROL
        else:
            kind = USER_DEFINED
        types.append(kind)
    return tokens, types


def _find_split(description: dict[str, Any], problems: list[str]) -> str:
    """Return llama.cpp's name of the steps before the merges. If it has none, add the reason to `problems`."""
    normalizer = description.get("normalizer")
    if normalizer and normalizer != {"type": "NFC"}:
        problems.append(f"its normalizer is {normalizer['type']}")
    step = description.get("pre_tokenizer") or {"type": "none"}
    steps = step["pretokenizers"] if step["type"] == "Sequence" else [step]
    rules = (*map(_rule, steps), bool(description["model"].get("ignore_merges")))
    if rules not in _SPLITS:
        problems.append(f"it splits texts by rules that llama.cpp has no name for: {str(rules)[:200]}")
    return _SPLITS.get(rules, "")


def _rule(step: dict[str, Any]) -> Any:
    """Return a step before the merges as the keys of `_SPLITS` have it, or as it is if no tokenizer there has it."""
    match step:
        case {"type": "ByteLevel", "add_prefix_space": False}:
            return "ByteLevel", step.get("use_regex", True)
        case {"type": "Digits"}:
            return "Digits", step["individual_digits"]
        case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}:
            return "Split", pattern
    return json.dumps(step)


def _special_ids(tokenizer: Any, stops: list[int]) -> dict[str, int]:
    names = {"bos": "bos_token_id", "eos": "eos_token_id", "unk": "unk_token_id", "pad": "pad_token_id"}
    ids = {name: getattr(tokenizer, attribute) for name, attribute in names.items()}
    # Chat models often end a turn by another token than a text.
    ids["eot"] = next((stop for stop in stops if stop != ids["eos"]), None)
    return {name: int(token) for name, token in ids.items() if token is not None}
