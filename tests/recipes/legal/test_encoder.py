"""Pretrained weights and their tokenizer, from a folder of this machine."""

from pathlib import Path
from shutil import copyfile

import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

from shoestring.api import estimate
from shoestring.errors import UsageError
from shoestring.recipes.legal import Legal, Options

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "appeal", "is", "dismiss", "##ed", "."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bert")
    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    BertModel(config).save_pretrained(path)
    (path / "vocab.txt").write_text("\n".join(WORDS))
    BertTokenizerFast(vocab={word: number for number, word in enumerate(WORDS)}).save_pretrained(path)
    return path


def recipe(folder: Path | str, data: Path | None = None) -> Legal:
    return Legal(Options(encoder=str(folder), data=data))


def test_its_weights_are_what_training_begins_with(folder: Path) -> None:
    model = recipe(folder).model()
    expected = BertModel.from_pretrained(folder).state_dict()
    found = model.encoder.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_its_tokenizer_reads_the_sentences(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "a.txt"
    data.write_text("\n".join(["The appeal is dismissed.\tDecision\n"] * 3))
    tokens, _, _ = recipe(folder, data).data()["train"][0]
    assert [WORDS[token] for token in tokens] == [
        "[CLS]", "[SEP]", "the", "appeal", "is", "dismiss", "##ed", ".", "[SEP]"
    ]  # fmt: skip


def test_it_is_estimated_without_its_weights(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            copyfile(file, tmp_path / file.name)
    found = estimate(recipe(tmp_path), on="t4", micro_batch=2, precision="fp32")
    assert found.facts.parameters_total == sum(one.numel() for one in recipe(folder).model().parameters())


def test_nothing_is_said_of_random_weights(folder: Path) -> None:
    made = recipe(folder)
    made.data()
    assert not any("random" in note for note in made.notes())


def test_what_is_not_there_is_refused_and_never_replaced(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read") as refused:
        recipe("nobody/has-this").model()
    assert "download=true" in str(refused.value.hint)
    with pytest.raises(UsageError, match="no tokenizer"):
        recipe("nobody/has-this").data()
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(UsageError, match="cannot be read"):
        recipe(tmp_path).model()


def test_a_folder_is_given_by_its_whole_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    with pytest.raises(UsageError, match="whole path"):
        Options(encoder=folder.name)
