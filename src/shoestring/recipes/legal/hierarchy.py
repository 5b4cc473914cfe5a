"""Words to sentences, sentences to a judgment: the Hier-BiLSTM-CRF of Bhattacharya et al. (JURIX 2019)."""

from typing import Any

import torch
from torch import Tensor, nn

from shoestring.recipes.legal.bilstm import BiLSTM
from shoestring.recipes.legal.crf import CRF
from shoestring.recipes.legal.judgments import Batch

SIZES: dict[str, dict[str, Any]] = {
    # Words of 100 and sentences of 200 numbers are the paper's; the two layers of 128 a direction above them are those
    # with which LegalSeg's authors train it.
    "full": {"vocabulary": 32_768, "word": 100, "sentence": 200, "hidden": 256, "layers": 2},
    "tiny": {"vocabulary": 8_192, "word": 32, "sentence": 48, "hidden": 64, "layers": 1},
}


class HierarchicalBiLSTM(nn.Module):
    """A batch of judgments -> the score of each role for each sentence, (n, sentences, roles); `crf` reads them.

    With `given`, the width of the sentences' vectors, a batch has these in place of words, and no layer reads words.
    """

    def __init__(
        self,
        *,
        roles: int,
        vocabulary: int,
        word: int,
        sentence: int,
        hidden: int,
        layers: int,
        given: int | None = None,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        if given is None:
            self.words = nn.Embedding(vocabulary, word, padding_idx=0)
            self.sentence = BiLSTM(word, sentence)
        self.judgment = BiLSTM(given or sentence, hidden, layers=layers, dropout=dropout)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, roles)
        self.crf = CRF(roles)

    def forward(self, batch: Batch) -> Tensor:
        vectors: Tensor = batch["vectors"] if "vectors" in batch else self._read(batch)
        judgments = self.judgment(vectors, batch["mask"].sum(1))
        scores: Tensor = self.head(self.dropout(judgments))
        return scores

    def _read(self, batch: Batch) -> Tensor:
        """The vectors of the sentences where they stand, (n, sentences, sentence)."""
        mask: Tensor = batch["mask"]
        found = torch.cat(
            [self._sentences(words, lengths) for words, lengths in zip(batch["words"], batch["lengths"], strict=True)]
        )
        rows = found.new_zeros(mask.numel(), found.shape[1]).index_copy(0, torch.cat(batch["places"]), found)
        return rows.view(*mask.shape, -1)

    def _sentences(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Each sentence's vector, (n, sentence): where either direction has read all of it."""
        read = self.sentence(self.dropout(self.words(words)), lengths)
        there, back = read.chunk(2, dim=-1)
        last = (lengths - 1)[:, None, None].expand(-1, 1, there.shape[-1])
        return torch.cat([there.gather(1, last)[:, 0], back[:, 0]], dim=-1)
