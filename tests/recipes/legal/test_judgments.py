import torch

from shoestring_recipes.legal.documents import Document
from shoestring_recipes.legal.hierarchical import SIZES, HierarchicalBiLSTM
from shoestring_recipes.legal.judgments import Judgments, collate, largest_batch
from shoestring_recipes.legal.tokens import HashedWords

DOCUMENTS = (
    Document(sentences=("a b c", "d " * 30, "e f"), roles=(1, 2, 3)),
    Document(sentences=("g",), roles=(4,)),
    Document(sentences=tuple("word " * (1 + number % 20) for number in range(11)), roles=tuple(range(7)) + (0,) * 4),
)


def build_samples(words: int = 128, sentences: int = 512) -> Judgments:
    return Judgments(DOCUMENTS, HashedWords(500), words=words, sentences=sentences)


def build_network() -> HierarchicalBiLSTM:
    torch.manual_seed(0)
    model = HierarchicalBiLSTM(roles=7, **{**SIZES["tiny"], "vocabulary": 500})
    return model.eval()


def test_sentences_of_a_sample_are_truncated() -> None:
    words, roles = build_samples(words=10)[0]
    assert [len(sentence) for sentence in words] == [3, 10, 2]
    assert roles.tolist() == [1, 2, 3]


def test_long_judgments_are_split_into_similar_parts() -> None:
    samples = build_samples(sentences=4)
    assert [samples.length(index) for index in range(len(samples))] == [3, 1, 4, 4, 3]
    assert torch.cat([samples[index][1] for index in (2, 3, 4)]).tolist() == list(DOCUMENTS[2].roles)


def test_each_sentence_is_in_one_group_with_its_place() -> None:
    batch = collate([build_samples()[index] for index in range(3)])
    assert batch["roles"].shape == batch["mask"].shape == (3, 11)
    assert batch["mask"].sum(1).tolist() == [3, 1, 11]
    assert batch["roles"][0].tolist() == [1, 2, 3] + [0] * 8
    places = torch.cat(batch["places"]).sort().values
    assert torch.equal(places, batch["mask"].flatten().nonzero()[:, 0])
    for words, lengths in zip(batch["words"], batch["lengths"], strict=True):
        assert torch.equal((words != 0).sum(1), lengths)
        assert words.shape[1] < 2 * lengths.min() + 8


def test_samples_of_a_batch_are_independent() -> None:
    model, samples = build_network(), build_samples()
    batch_output = model(collate([samples[index] for index in range(3)]))
    for index in range(3):
        single = model(collate([samples[index]]))
        torch.testing.assert_close(batch_output[index, : single.shape[1]], single[0])


def test_every_sentence_affects_its_own_output() -> None:
    model, samples = build_network(), build_samples()
    words, roles = samples[2]
    original = model(collate([(words, roles)]))
    for changed in (0, 5, 10):
        changed_words = [sentence + 1 if place == changed else sentence for place, sentence in enumerate(words)]
        difference = (model(collate([(changed_words, roles)])) - original)[0].abs().sum(-1)
        assert difference.argmax() == changed


def test_largest_batch_equals_a_real_batch() -> None:
    model = build_network()
    batch = largest_batch(2, words=16, sentences=5)
    real = collate([([torch.ones(16, dtype=torch.int64)] * 5, torch.zeros(5, dtype=torch.int64))] * 2)
    assert batch.keys() == real.keys()
    for name, value in batch.items():
        for tensor, expected in zip(
            *((value, real[name]) if isinstance(value, tuple) else ([value], [real[name]])), strict=True
        ):
            assert tensor.dtype == expected.dtype and torch.equal(tensor, expected)
    assert model(batch).shape == (2, 5, 7)
