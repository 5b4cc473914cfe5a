"""SentencePiece's BPE, as Llama 2 and TinyLlama have it: scores of tokens in place of the merges of tokenizer.json.

llama.cpp merges the neighbours whose text together is the token with the highest score. That is what the merges of
tokenizer.json do where they have every pair of tokens that makes a token, token after token.
"""

from __future__ import annotations

import re
from typing import Any

SPACE = "\u2581"
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_PREPEND = {"type": "Prepend", "prepend": SPACE}


def is_byte(token: str) -> bool:
    """Return whether a token stands for a byte that no other token has."""
    return _BYTE.fullmatch(token) is not None


def problems(description: dict[str, Any]) -> list[str]:
    """Return why llama.cpp would make other tokens of a text than the tokenizer that `tokenizer.json` describes."""
    problems = []
    normalizer, splitter = description.get("normalizer"), description.get("pre_tokenizer")
    replaces = normalizer == {"type": "Sequence", "normalizers": [_PREPEND, _REPLACE]} and not splitter
    match splitter:
        case {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first" | "always", "split": False}:
            replaces = not normalizer
    if not replaces:
        problems.append("it does not replace spaces, and the begin of a text, by \u2581 alone")
    vocabulary = description["model"]["vocab"]
    merged = [_pair(merge) for merge in description["model"]["merges"]]
    results = ["".join(pair) for pair in merged]
    changes = sum(result != previous for result, previous in zip(results, ["", *results], strict=False))
    missing = _pairs_without_merge(vocabulary, set(merged))
    if changes != len(set(results)):
        problems.append("its merges do not complete one token after the other")
    if missing:
        problems.append(f"it never merges {missing[0][0]!r} and {missing[0][1]!r}, although both make a token")
    return problems


def scores(model: dict[str, Any], tokens: list[str]) -> list[float]:
    """Return the score of each token: the earlier it is merged, the higher."""
    ranks: dict[str, int] = {}
    for merge in model["merges"]:
        ranks.setdefault("".join(_pair(merge)), len(ranks))
    return [-float(ranks.get(token, len(ranks))) for token in tokens]


def _pair(merge: Any) -> tuple[str, str]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _pairs_without_merge(vocabulary: dict[str, int], merges: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the pairs of tokens that make a token, but are not merged; bytes and added tokens are not met in texts."""
    merged_tokens = {"".join(pair) for pair in merges}
    return [
        (token[:cut], token[cut:])
        for token in vocabulary
        if token in merged_tokens
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary and (token[:cut], token[cut:]) not in merges
    ]
