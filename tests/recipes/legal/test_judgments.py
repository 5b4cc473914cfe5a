import torch
from shoestring.recipes.legal.hierarchy import SIZES, HierarchicalBiLSTM

from shoestring.recipes.legal.documents import Document
from shoestring.recipes.legal.judgments import Judgments, collate, largest
from shoestring.recipes.legal.tokens import HashedWords

DOCUMENTS = (
    Document(sentences=("a b c", "d " * 30, "e f"), roles=(1, 2, 3)),
    Document(sentences=("g",), roles=(4,)),
    Document(sentences=tuple("word " * (1 + number % 20) for number in range(11)), roles=tuple(range(7)) + (0,) * 4),
)


def samples(words: int = 128, sentences: int = 512) -> Judgments:
    return Judgments(DOCUMENTS, HashedWords(500), words=words, sentences=sentences)


def network() -> HierarchicalBiLSTM:
    torch.manual_seed(0)
    made = HierarchicalBiLSTM(roles=7, **{**SIZES["tiny"], "vocabulary": 500})
    return made.eval()


def test_a_sample_is_a_judgment_with_its_sentences_cut() -> None:
    words, roles = samples(words=10)[0]
    assert [len(one) for one in words] == [3, 10, 2]
    assert roles.tolist() == [1, 2, 3]


def test_a_long_judgment_comes_in_parts_about_equally_long() -> None:
    found = samples(sentences=4)
    assert [found.length(index) for index in range(len(found))] == [3, 1, 4, 4, 3]
    assert torch.cat([found[index][1] for index in (2, 3, 4)]).tolist() == list(DOCUMENTS[2].roles)


def test_each_sentence_is_in_one_group_with_its_place() -> None:
    batch = collate([samples()[index] for index in range(3)])
    assert batch["roles"].shape == batch["mask"].shape == (3, 11)
    assert batch["mask"].sum(1).tolist() == [3, 1, 11]
    assert batch["roles"][0].tolist() == [1, 2, 3] + [0] * 8
    places = torch.cat(batch["places"]).sort().values
    assert torch.equal(places, batch["mask"].flatten().nonzero()[:, 0])
    for words, lengths in zip(batch["words"], batch["lengths"], strict=True):
        assert torch.equal((words != 0).sum(1), lengths)
        assert words.shape[1] < 2 * lengths.min() + 8


def test_what_else_is_in_the_batch_changes_nothing() -> None:
    model, found = network(), samples()
    together = model(collate([found[index] for index in range(3)]))
    for index in range(3):
        alone = model(collate([found[index]]))
        torch.testing.assert_close(together[index, : alone.shape[1]], alone[0])


def test_every_sentence_is_read_and_put_where_it_stands() -> None:
    model, found = network(), samples()
    words, roles = found[2]
    before = model(collate([(words, roles)]))
    for changed in (0, 5, 10):
        others = [one + 1 if place == changed else one for place, one in enumerate(words)]
        difference = (model(collate([(others, roles)])) - before)[0].abs().sum(-1)
        assert difference.argmax() == changed


def test_the_largest_batch_has_the_form_of_a_real_one() -> None:
    model = network()
    batch = largest(2, words=16, sentences=5)
    real = collate([([torch.ones(16, dtype=torch.int64)] * 5, torch.zeros(5, dtype=torch.int64))] * 2)
    assert batch.keys() == real.keys()
    for name, value in batch.items():
        for ours, theirs in zip(
            *((value, real[name]) if isinstance(value, tuple) else ([value], [real[name]])), strict=True
        ):
            assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    assert model(batch).shape == (2, 5, 7)
