"""Pretrained weights and their tokenizer, from a local folder."""

from pathlib import Path
from shutil import copyfile

import pytest
import torch
from tokenizers.implementations import BertWordPieceTokenizer
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from shoestring.api import estimate
from shoestring.base.errors import UsageError
from shoestring_recipes.legal import Legal, Options

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "appeal", "is", "dismiss", "##ed", "."]


def save_bert_tokenizer(folder: Path, words: list[str]) -> None:
    """Save a tokenizer as BERT's, with lower case.

    Not with `BertTokenizerFast`, whose arguments and whose default of case differ between versions of transformers.
    """
    pieces = BertWordPieceTokenizer({word: number for number, word in enumerate(words)}, lowercase=True)
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    PreTrainedTokenizerFast(tokenizer_object=pieces._tokenizer, **special).save_pretrained(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bert")
    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    BertModel(config).save_pretrained(path)
    (path / "vocab.txt").write_text("\n".join(WORDS))
    save_bert_tokenizer(path, WORDS)
    return path


def build_recipe(encoder: Path | str, data: Path | None = None) -> Legal:
    return Legal(Options(encoder=str(encoder), data=data))


def test_pretrained_weights_are_loaded(folder: Path) -> None:
    model = build_recipe(folder).model()
    expected = BertModel.from_pretrained(folder).state_dict()
    state = model.encoder.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], value) for name, value in expected.items())


def test_pretrained_tokenizer_is_used(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "a.txt"
    data.write_text("\n".join(["The appeal is dismissed.\tDecision\n"] * 3))
    tokens, _, _ = build_recipe(folder, data).data()["train"][0]
    assert [WORDS[token] for token in tokens] == [
        "[CLS]", "[SEP]", "the", "appeal", "is", "dismiss", "##ed", ".", "[SEP]"
    ]  # fmt: skip


def test_estimate_does_not_need_the_weights(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            copyfile(file, tmp_path / file.name)
    result = estimate(build_recipe(tmp_path), on="t4", micro_batch=2, precision="fp32")
    assert result.facts.parameters_total == sum(
        parameter.numel() for parameter in build_recipe(folder).model().parameters()
    )


def test_notes_do_not_mention_random_weights(folder: Path) -> None:
    recipe = build_recipe(folder)
    recipe.data()
    assert not any("random" in note for note in recipe.notes())


def test_missing_files_of_the_encoder_are_errors(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read") as error:
        build_recipe("nobody/has-this").model()
    assert "download=true" in str(error.value.hint)
    with pytest.raises(UsageError, match="tokenizer cannot be read"):
        build_recipe("nobody/has-this").data()
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(UsageError, match="cannot be read"):
        build_recipe(tmp_path).model()


def test_a_folder_must_be_an_absolute_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    with pytest.raises(UsageError, match="absolute path"):
        Options(encoder=folder.name)


def test_a_trained_model_needs_no_folder_of_its_encoder(folder: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    recipe = build_recipe(tmp_path)
    stored = tmp_path / "stored"
    stored.mkdir()
    recipe.save_preprocessing(stored)
    texts = ["The appeal is dismissed.", "Dismissed"]
    expected_samples, weights = [item.load() for item in recipe.inputs(texts)], recipe.model().state_dict()
    assert {path.relative_to(stored).as_posix() for path in stored.rglob("*.json")} >= {
        "roles.json", "encoder/config.json", "encoder/tokenizer.json"
    }  # fmt: skip
    for name in ("model.safetensors", "config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    trained = build_recipe(tmp_path)
    trained.load_preprocessing(stored)
    model = trained.skeleton()
    model.load_state_dict(weights)
    assert not any("random" in note for note in trained.notes())
    samples = [item.load() for item in trained.inputs(texts)]
    for sample, expected in zip(samples, expected_samples, strict=True):
        assert torch.equal(sample.samples[0], expected.samples[0])
    with pytest.raises(UsageError, match="cannot be read"):
        build_recipe(tmp_path).skeleton()


def test_stored_roles_replace_the_option(tmp_path: Path) -> None:
    Legal(Options(size="tiny", roles="Fact,Law")).save_preprocessing(tmp_path)
    recipe = Legal(Options(size="tiny"))
    recipe.load_preprocessing(tmp_path)
    assert recipe.targets((None, None, torch.tensor([1, 0]))) == ["Law", "Fact"]
    assert recipe.model().head.out_features == 2
    (tmp_path / "roles.json").write_text('{"roles": [1]}')
    with pytest.raises(UsageError, match=r"roles.json cannot be read"):
        recipe.load_preprocessing(tmp_path)
    (tmp_path / "roles.json").write_text('{"roles": ["Fact", "Law"]}')
    with pytest.raises(UsageError, match="the model was trained with the roles Fact, Law"):
        Legal(Options(size="tiny", roles="law-ai")).load_preprocessing(tmp_path)


def test_a_sentence_without_tokens_is_an_error(folder: Path) -> None:
    inputs = list(build_recipe(folder).inputs([{"sentences": ["The appeal", "\N{ZERO WIDTH SPACE}", "is dismissed"]}]))
    assert [item.error for item in inputs] == [None, "0, sentence 2: has no tokens", None]
