"""Target texts and generated texts: an answer and a reasoning in tags."""

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
"""Kinds of reasoning, and their published weights, the defaults for rows without a weight."""
NEUTRAL, NEUTRAL_WEIGHT = "NEUTRAL", 1.0
"""What the published loader takes for a row without a kind, and the weight of a row without one."""

TAGS = ("<answer>", "</answer>", "<reasoning>", "</reasoning>")
BEGIN = TAGS[0]
"""The beginning of the whole text, which generation is forced to start with: the reasoning text starts otherwise."""

_WELL_FORMED = re.compile(
    rf"<answer>(?P<answer>[^<]+)</answer>\n<reasoning>(?:\[(?:{'|'.join(KINDS)})\] (?P<reasoning>[^<]+)"
    rf"|\[{NEUTRAL}\] ?(?P<neutral>[^<]*))</reasoning>"
)
_ANSWER, _REASONING = re.compile("<answer>([^<]*)</answer>"), re.compile("<reasoning>([^<]*)</reasoning>")
_KIND = re.compile(rf"^\[(?:{'|'.join((*KINDS, NEUTRAL))})\]")


@dataclass(frozen=True, kw_only=True)
class ParsedText:
    """The answer and the reasoning of a text; each is empty where its tags are missing."""

    answer: str
    reasoning: str
    well_formed: bool


def normalize(text: str) -> str:
    """Return `text` with each letter as one code point and single spaces, so that equal letters have equal tokens."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def build_targets(answer: str, reasoning: str, kind: str) -> tuple[str, str, str]:
    """Return the three target texts with their tags: the whole text, the answer and the reasoning."""
    answer_text, reasoning_text = f"<answer>{answer}</answer>", f"<reasoning>[{kind}] {reasoning}</reasoning>"
    return f"{answer_text}\n{reasoning_text}", answer_text, reasoning_text


def parse(text: str) -> ParsedText:
    """Return the answer and the reasoning of a generated text."""
    if whole := _WELL_FORMED.fullmatch(text):
        reasoning_text = whole["reasoning"] or whole["neutral"] or ""
        return ParsedText(answer=normalize(whole["answer"]), reasoning=normalize(reasoning_text), well_formed=True)
    answer, reasoning = _ANSWER.search(text), _REASONING.search(text)
    return ParsedText(
        answer=normalize(answer[1]) if answer else "",
        reasoning=normalize(_KIND.sub("", reasoning[1])) if reasoning else "",
        well_formed=False,
    )
