from pathlib import Path

import pytest

from shoestring.errors import UsageError
from shoestring.recipes.vqa import digits, tokens
from shoestring.recipes.vqa.texts import targets

PANGRAM = "Đặng Thị Ưỡn khuỷu tay, quyển vở ĐỎ; 3 < 5 (ừ!)"


def test_every_vietnamese_letter_survives() -> None:
    for made in (tokens.questions(), tokens.texts()):
        assert made.decode([*made.encode(PANGRAM), made.end]) == PANGRAM
        letters = "".join(sorted(tokens._vietnamese()))
        assert len(letters) == 67
        assert made.decode(made.encode(letters + letters.upper())) == letters + letters.upper()


def test_the_templates_are_whole_words_and_come_back() -> None:
    made = tokens.texts()
    for text in digits.words():
        assert made.decode(made.encode(text)) == text
    assert len(made.encode("Nét vẽ trong ảnh có hình của số bảy.")) == 10


def test_it_depends_on_nothing_but_the_recipe() -> None:
    """Numbers that weights were trained with: changing them breaks every run there is."""
    assert len(tokens.vocabulary()) == len(set(tokens.vocabulary()))
    made = tokens.texts()
    assert made.count <= 512
    assert made.encode("<answer>số bảy</answer>") == [4, *made.encode("số bảy"), 5]
    assert tokens.vocabulary()[:4] == ("<answer>", "</answer>", "<reasoning>", "</reasoning>")


def test_what_is_unknown_is_seen() -> None:
    made = tokens.texts()
    assert made.decode(made.encode("số 七")) == "số \N{REPLACEMENT CHARACTER}"


def test_a_text_is_over_at_its_end() -> None:
    made = tokens.texts()
    assert made.decode([made.begin, *made.encode("số"), made.end, *made.encode("bảy"), made.pad]) == "số"


def pretrained(folder: Path, *, sentinels: int) -> object:
    """A tokenizer as transformers has them, saved and loaded again. Like T5's it has no <."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    alphabet = "".join(sorted(set("".join(digits.words())) | set("OBJECT")))
    words = {"<pad>": 0, "</s>": 1, "<unk>": 2} | {
        letter: number for number, letter in enumerate(["▁", *alphabet.replace(" ", "")], start=3)
    }
    made = Tokenizer(models.BPE(words, [], unk_token="<unk>"))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    extra = [f"<extra_id_{number}>" for number in range(sentinels)]
    whole = PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=extra,
    )
    whole.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def test_a_pretrained_tokenizer_writes_the_tags_with_its_sentinels(tmp_path: Path) -> None:
    made = tokens.Pretrained(pretrained(tmp_path, sentinels=len(tokens.MARKS)), marked=True)
    assert (made.pad, made.end, made.begin) == (0, 1, 0)
    for kind in ("OBJECT", "CAUSAL"):
        for text in targets("số bảy", "Trong ảnh là số bảy, một số lẻ.", kind):
            found = made.encode(text)
            assert 2 not in found
            assert made.decode([*found, made.end, made.pad]) == text
        whole, answer, _ = map(made.encode, targets("số bảy", "một số lẻ", kind))
        assert whole[: len(answer)] == answer
    assert len(made.encode("<answer>")) == 1


def test_one_without_sentinels_is_refused(tmp_path: Path) -> None:
    loaded = pretrained(tmp_path, sentinels=3)
    with pytest.raises(UsageError, match="<extra_id_11>"):
        tokens.Pretrained(loaded, marked=True)
