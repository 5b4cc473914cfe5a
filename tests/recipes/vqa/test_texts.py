import unicodedata

import pytest

from shoestring_recipes.vqa.texts import KINDS, ParsedText, build_targets, normalize, parse


@pytest.mark.parametrize("kind", KINDS)
def test_target_texts_are_parsed_back(kind: str) -> None:
    whole, answer, reasoning = build_targets("số bảy", "Vì [nó] chia cho ba.", kind)
    assert whole == f"<answer>số bảy</answer>\n<reasoning>[{kind}] Vì [nó] chia cho ba.</reasoning>"
    assert whole == f"{answer}\n{reasoning}"
    assert parse(whole) == ParsedText(answer="số bảy", reasoning="Vì [nó] chia cho ba.", well_formed=True)
    assert parse(answer) == ParsedText(answer="số bảy", reasoning="", well_formed=False)
    assert parse(reasoning) == ParsedText(answer="", reasoning="Vì [nó] chia cho ba.", well_formed=False)


@pytest.mark.parametrize("reasoning", ["", "vì thế"])
@pytest.mark.parametrize("space", ["", " "])
def test_neutral_text_may_have_no_reasoning(reasoning: str, space: str) -> None:
    text = f"<answer>a</answer>\n<reasoning>[NEUTRAL]{space}{reasoning}</reasoning>"
    assert parse(text) == ParsedText(answer="a", reasoning=reasoning, well_formed=True)
    assert parse(text.removesuffix("</reasoning>")).well_formed is False


@pytest.mark.parametrize(
    "text",
    [
        "",
        "số bảy",
        "<answer></answer>\n<reasoning>[OBJECT] r</reasoning>",
        "<answer>a</answer> <reasoning>[OBJECT] r</reasoning>",
        "<answer>a</answer>\n<reasoning>r</reasoning>",
        "<answer>a</answer>\n<reasoning>[OBJECT] </reasoning>",
        "<answer>a</answer>\n<reasoning>[THING] r</reasoning>",
        "<answer>a</answer>\n<reasoning>[OBJECT] r</reasoning> more",
        "<answer>a<answer>b</answer>\n<reasoning>[OBJECT] r</reasoning>",
        "<answer>a</answer>\n<reasoning>[OBJECT] r",
    ],
)
def test_other_texts_are_not_well_formed(text: str) -> None:
    assert not parse(text).well_formed


def test_text_without_tags_has_no_answer() -> None:
    assert parse("số bảy").answer == ""


def test_normalized_letters_are_single_code_points() -> None:
    assert normalize(unicodedata.normalize("NFD", "  số   bảy\n")) == "số bảy"
