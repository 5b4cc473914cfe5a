"""The texts that are learnt and written: an answer and a reasoning in their tags."""

import re
import unicodedata
from dataclasses import dataclass

KINDS = {
    "CAUSAL": 5.0,
    "DESCRIPTIVE": 4.0,
    "INTENT": 4.0,
    "OBJECT": 2.0,
    "COUNTING": 2.0,
    "SPATIAL": 1.5,
    "COMMONSENSE": 1.0,
}
"""Kinds of reasoning, and the published weights of a row of each where it has none of its own."""

TAGS = ("<answer>", "</answer>", "<reasoning>", "</reasoning>")
BEGIN = TAGS[0]
"""What the whole text begins with. It is given when one is written, because each of the three texts begins anew."""

_WELL_FORMED = re.compile(
    rf"<answer>(?P<answer>[^<]+)</answer>\n<reasoning>\[(?:{'|'.join(KINDS)})\] (?P<reasoning>[^<]+)</reasoning>"
)
_ANSWER, _REASONING = re.compile("<answer>([^<]*)</answer>"), re.compile("<reasoning>([^<]*)</reasoning>")
_KIND = re.compile(rf"^\[(?:{'|'.join(KINDS)})\]")


@dataclass(frozen=True, kw_only=True)
class Written:
    """What a text says. Without its tags there is neither answer nor reasoning: empty."""

    answer: str
    reasoning: str
    well_formed: bool


def normal(text: str) -> str:
    """`text` with each letter as one code point and single spaces: one letter, one number, whoever typed it."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def targets(answer: str, reasoning: str, kind: str) -> tuple[str, str, str]:
    """The three texts to learn: the whole in its format, the answer alone, the reasoning alone."""
    alone = f"<answer>{answer}</answer>", f"<reasoning>[{kind}] {reasoning}</reasoning>"
    return "\n".join(alone), *alone


def parsed(text: str) -> Written:
    """What a written text says."""
    if whole := _WELL_FORMED.fullmatch(text):
        return Written(answer=normal(whole["answer"]), reasoning=normal(whole["reasoning"]), well_formed=True)
    answer, reasoning = _ANSWER.search(text), _REASONING.search(text)
    return Written(
        answer=normal(answer[1]) if answer else "",
        reasoning=normal(_KIND.sub("", reasoning[1])) if reasoning else "",
        well_formed=False,
    )
