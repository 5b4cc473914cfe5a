"""How good what was written is: the answers, and the reasonings."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from shoestring.recipes.vqa.bleu import bleu
from shoestring.recipes.vqa.cider import cider
from shoestring.recipes.vqa.overlap import rouge_l, token_f1, words
from shoestring.recipes.vqa.samples import Sample
from shoestring.recipes.vqa.texts import parsed


def scores(written: Sequence[str], samples: Sequence[Sample]) -> dict[str, Any]:
    """Metrics of texts written for `samples`; BLEU from 0 to 100, CIDEr to 10, all others to 1.

    `majority_` ones are of always giving these data's most frequent answer. Which that is only hindsight knows.
    """
    said = [parsed(text) for text in written]
    answers = [(words(one.answer), words(sample.answer)) for one, sample in zip(said, samples, strict=True)]
    reasonings = [(words(one.reasoning), words(sample.reasoning)) for one, sample in zip(said, samples, strict=True)]
    common = Counter(sample.answer for sample in samples).most_common(1)[0][0]
    always = [(words(common), wanted) for _, wanted in answers]
    return {
        **_of_answers("", answers),
        **_of_answers("majority_", always),
        "bleu": bleu(answers),
        "cider": cider(answers),
        "reasoning_rouge_l": _mean([rouge_l(*pair) for pair in reasonings]),
        "reasoning_bleu": bleu(reasonings),
        "reasoning_cider": cider(reasonings),
        "well_formed": _mean([float(one.well_formed) for one in said]),
        "most_frequent_answer": common,
        "kinds": _by_kind(answers, samples),
    }


def _of_answers(prefix: str, pairs: Sequence[tuple[list[str], list[str]]]) -> dict[str, float]:
    return {
        f"{prefix}exact_match": _mean([float(found == wanted) for found, wanted in pairs]),
        f"{prefix}token_f1": _mean([token_f1(*pair) for pair in pairs]),
        f"{prefix}rouge_l": _mean([rouge_l(*pair) for pair in pairs]),
    }


def _by_kind(pairs: Sequence[tuple[list[str], list[str]]], samples: Sequence[Sample]) -> dict[str, Any]:
    """Exact match by the kind of reasoning."""
    right: dict[str, list[float]] = defaultdict(list)
    for (found, wanted), sample in zip(pairs, samples, strict=True):
        right[sample.kind].append(float(found == wanted))
    return {kind: {"samples": len(right[kind]), "exact_match": _mean(right[kind])} for kind in sorted(right)}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
