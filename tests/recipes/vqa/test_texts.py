import unicodedata

import pytest

from shoestring.recipes.vqa.texts import KINDS, Written, normal, parsed, targets


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_put_into_tags_comes_out_again(kind: str) -> None:
    whole, answer, reasoning = targets("số bảy", "Vì [nó] chia cho ba.", kind)
    assert whole == f"<answer>số bảy</answer>\n<reasoning>[{kind}] Vì [nó] chia cho ba.</reasoning>"
    assert whole == f"{answer}\n{reasoning}"
    assert parsed(whole) == Written(answer="số bảy", reasoning="Vì [nó] chia cho ba.", well_formed=True)
    assert parsed(answer) == Written(answer="số bảy", reasoning="", well_formed=False)
    assert parsed(reasoning) == Written(answer="", reasoning="Vì [nó] chia cho ba.", well_formed=False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "số bảy",
        "<answer></answer>\n<reasoning>[OBJECT] r</reasoning>",
        "<answer>a</answer> <reasoning>[OBJECT] r</reasoning>",
        "<answer>a</answer>\n<reasoning>r</reasoning>",
        "<answer>a</answer>\n<reasoning>[THING] r</reasoning>",
        "<answer>a</answer>\n<reasoning>[OBJECT] r</reasoning> more",
        "<answer>a<answer>b</answer>\n<reasoning>[OBJECT] r</reasoning>",
        "<answer>a</answer>\n<reasoning>[OBJECT] r",
    ],
)
def test_anything_else_is_not_well_formed(text: str) -> None:
    assert not parsed(text).well_formed


def test_without_its_tags_there_is_no_answer() -> None:
    assert parsed("số bảy").answer == ""


def test_letters_are_one_code_point_each() -> None:
    assert normal(unicodedata.normalize("NFD", "  số   bảy\n")) == "số bảy"
