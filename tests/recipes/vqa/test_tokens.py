from pathlib import Path

import pytest

from shoestring.base.errors import UsageError
from shoestring_recipes.vqa import digits, tokens
from shoestring_recipes.vqa.texts import build_targets

PANGRAM = "Đặng Thị Ưỡn khuỷu tay, quyển vở ĐỎ; 3 < 5 (ừ!)"


def test_vietnamese_letters_are_encoded_losslessly() -> None:
    for tokenizer in (tokens.build_question_tokenizer(), tokens.build_text_tokenizer()):
        assert tokenizer.decode([*tokenizer.encode(PANGRAM), tokenizer.end]) == PANGRAM
        letters = "".join(sorted(tokens._vietnamese_letters()))
        assert len(letters) == 67
        assert tokenizer.decode(tokenizer.encode(letters + letters.upper())) == letters + letters.upper()


def test_template_texts_are_encoded_as_whole_words() -> None:
    tokenizer = tokens.build_text_tokenizer()
    for text in digits.template_texts():
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("Nét vẽ trong ảnh có hình của số bảy.")) == 10


def test_vocabulary_is_fixed() -> None:
    """Changed token numbers would invalidate the weights of existing runs."""
    assert len(tokens.vocabulary()) == len(set(tokens.vocabulary()))
    tokenizer = tokens.build_text_tokenizer()
    assert tokenizer.count <= 512
    assert tokenizer.encode("<answer>số bảy</answer>") == [4, *tokenizer.encode("số bảy"), 5]
    assert tokens.vocabulary()[:4] == ("<answer>", "</answer>", "<reasoning>", "</reasoning>")


def test_unknown_characters_are_replaced_visibly() -> None:
    tokenizer = tokens.build_text_tokenizer()
    assert tokenizer.decode(tokenizer.encode("số 七")) == "số \N{REPLACEMENT CHARACTER}"


def test_decoding_stops_at_the_end_token() -> None:
    tokenizer = tokens.build_text_tokenizer()
    encoded = [tokenizer.begin, *tokenizer.encode("số"), tokenizer.end, *tokenizer.encode("bảy"), tokenizer.pad]
    assert tokenizer.decode(encoded) == "số"


def save_tokenizer(folder: Path, *, sentinels: int) -> object:
    """Save a tokenizer in the format of transformers, and load it again. Like T5's it has no <."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    alphabet = "".join(sorted(set("".join(digits.template_texts())) | set("OBJECT")))
    words = {"<pad>": 0, "</s>": 1, "<unk>": 2} | {
        letter: number for number, letter in enumerate(["▁", *alphabet.replace(" ", "")], start=3)
    }
    tokenizer = Tokenizer(models.BPE(words, [], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    extra_tokens = [f"<extra_id_{number}>" for number in range(sentinels)]
    fast_tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=extra_tokens,
    )
    fast_tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def test_pretrained_tokenizer_encodes_tags_as_sentinels(tmp_path: Path) -> None:
    saved = save_tokenizer(tmp_path, sentinels=len(tokens.MARKERS))
    tokenizer = tokens.PretrainedTokenizer(saved, has_markers=True)
    assert (tokenizer.pad, tokenizer.end, tokenizer.begin) == (0, 1, 0)
    for kind in ("OBJECT", "CAUSAL"):
        for text in build_targets("số bảy", "Trong ảnh là số bảy, một số lẻ.", kind):
            encoded = tokenizer.encode(text)
            assert 2 not in encoded
            assert tokenizer.decode([*encoded, tokenizer.end, tokenizer.pad]) == text
        whole, answer, _ = map(tokenizer.encode, build_targets("số bảy", "một số lẻ", kind))
        assert whole[: len(answer)] == answer
    assert len(tokenizer.encode("<answer>")) == 1


def test_tokenizer_without_sentinels_is_rejected(tmp_path: Path) -> None:
    saved = save_tokenizer(tmp_path, sentinels=3)
    with pytest.raises(UsageError, match="<extra_id_11>"):
        tokens.PretrainedTokenizer(saved, has_markers=True)
