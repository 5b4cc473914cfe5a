"""The ONNX graphs of both networks, and the classifier with a pretrained tokenizer."""

import json
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerFast

from shoestring.runs.export import onnx
from shoestring_recipes.legal import Legal, Options
from shoestring_recipes.legal.crf import CRF
from shoestring_recipes.legal.documents import Document
from shoestring_recipes.legal.judgments import Judgments
from shoestring_recipes.legal.sentences import Sentences
from shoestring_recipes.legal.tokens import HashedWords, PretrainedTokenizer
from shoestring_recipes.legal.vectors import Vectors
from tests.slow import slow_except

JUDGMENTS = [
    Document(sentences=tuple("a word " * length for length in lengths), roles=(1,) * len(lengths))
    for lengths in ([3, 1, 9, 2], [20, 1], [5], [2, 2, 2], [1, 30, 4, 4, 4], [7, 6])
]


def graph_of(recipe: Legal, dataset, folder: Path):
    """Write the recipe's graph and return it with the compared outputs, of one, two and three samples."""
    torch.manual_seed(0)
    graph = recipe.onnx(recipe.model().eval())
    batches = [recipe.collate([dataset[index] for index in indices]) for indices in ([0], [1, 2], [3, 4, 5])]
    with torch.no_grad():
        return graph, onnx.write(graph, folder, batches).compared


@pytest.mark.parametrize("vectors", slow_except([None, 6], 6))
def test_emissions_and_their_decoding(vectors, tmp_path):
    options = {"data": tmp_path, "vectors": vectors} if vectors else {}
    recipe = Legal(Options(size="tiny", architecture="hier_bilstm_crf", **options))
    if vectors:
        rows = [Document(sentences=(f"{n} 1 2 3 4 5",) * n, roles=(0,) * n) for n in (4, 2, 1, 3, 5, 2)]
        dataset = Vectors(rows, sentences=100)
    else:
        dataset = Judgments(JUDGMENTS, HashedWords(8192), words=128, sentences=100)
    _, compared = graph_of(recipe, dataset, tmp_path)
    assert [tuple(actual.shape) for _, actual in compared] == [(1, 4, 7), (2, 2, 7), (3, 5, 7)]
    assert all(torch.allclose(expected, actual, atol=1e-5) for expected, actual in compared)
    assert all(expected.abs().max() > 0.01 for expected, _ in compared)
    # The rule on the card, by trying every sequence, gives the decoding of the CRF.
    facts = json.loads((tmp_path / "graph.json").read_text())["crf"]
    crf = CRF(7)
    for name, values in facts.items():
        getattr(crf, name).data = torch.tensor(values)
    emissions = compared[0][1][0, :3]

    def score(roles: tuple[int, ...]) -> float:
        inner = sum(facts["transitions"][first][second] for first, second in pairwise(roles))
        outer = facts["first"][roles[0]] + facts["last"][roles[-1]]
        return inner + outer + sum(float(row[role]) for row, role in zip(emissions, roles, strict=True))

    best = max(product(range(7), repeat=3), key=score)
    assert crf.decode(emissions[None], torch.ones(1, 3, dtype=torch.bool)).tolist() == [list(best)]


@pytest.mark.slow
def test_classifier_takes_texts_of_any_length(tmp_path):
    recipe = Legal(Options(size="tiny"))
    dataset = Sentences(JUDGMENTS, HashedWords(4096), "previous", 512)
    graph, compared = graph_of(recipe, dataset, tmp_path)
    assert [len(actual) for _, actual in compared] == [1, 2, 3]
    assert all(torch.allclose(expected, actual, atol=1e-5) for expected, actual in compared)
    assert json.loads((tmp_path / "graph.json").read_text()) == {"labels": list(graph.facts["labels"])}


def test_pretrained_tokenizer_makes_the_samples_of_training(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghij"]
    library = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    from tokenizers.processors import BertProcessing

    library.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    encoder, out = tmp_path / "encoder", tmp_path / "out"
    PreTrainedTokenizerFast(tokenizer_object=library, **names).save_pretrained(encoder)
    BertModel(
        BertConfig(vocab_size=14, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    ).save_pretrained(encoder)
    recipe = Legal(Options(encoder=str(encoder), seq_len=8))
    document = Document(sentences=("a b c d e", "f g h"), roles=(0, 1))
    dataset = Sentences([document], PretrainedTokenizer(str(encoder), download=False), "previous", 8)
    samples = [dataset[0], dataset[1]]
    out.mkdir()
    with torch.no_grad():
        exported = recipe.exports["huggingface"].write(recipe.model().eval(), out, [samples])
    assert all(torch.allclose(expected, actual, atol=1e-6) for expected, actual in exported.compared)
    assert str(tmp_path) not in (out / "config.json").read_text() + (out / "tokenizer_config.json").read_text()
    tokenizer = AutoTokenizer.from_pretrained(out)
    pairs = [("", "a b c d e"), ("a b c d e", "f g h")]
    for (before, sentence), (tokens, *_) in zip(pairs, samples, strict=True):
        inputs = tokenizer(before, sentence, truncation="only_first")
        assert set(inputs) == {"input_ids", "attention_mask"}
        assert inputs["input_ids"] == tokens.tolist()
