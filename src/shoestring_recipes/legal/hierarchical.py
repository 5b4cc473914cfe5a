"""The Hier-BiLSTM-CRF of Bhattacharya et al. (JURIX 2019): a BiLSTM over words, another over sentences, and a CRF."""

from typing import Any

import torch
from torch import Tensor, nn

from shoestring_recipes.legal.bilstm import BiLSTM
from shoestring_recipes.legal.crf import CRF
from shoestring_recipes.legal.judgments import Batch

SIZES: dict[str, dict[str, Any]] = {
    # The widths of 100 for words and 200 for sentences are those of the paper; the two layers of 128 per direction over
    # the sentences are those of LegalSeg's authors.
    "full": {"vocabulary": 32_768, "word": 100, "sentence": 200, "hidden": 256, "layers": 2},
    "tiny": {"vocabulary": 8_192, "word": 32, "sentence": 48, "hidden": 64, "layers": 1},
}


class HierarchicalBiLSTM(nn.Module):
    """Maps a batch of judgments to the emission scores of `crf`, (n, sentences, roles).

    With `vector_width`, the batch has precomputed sentence vectors of that width instead of words, and the network has
    no layers for words.
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
        vector_width: int | None = None,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        if vector_width is None:
            self.words = nn.Embedding(vocabulary, word, padding_idx=0)
            self.sentence = BiLSTM(word, sentence)
        self.judgment = BiLSTM(vector_width or sentence, hidden, layers=layers, dropout=dropout)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, roles)
        self.crf = CRF(roles)

    def forward(self, batch: Batch) -> Tensor:
        vectors: Tensor = batch["vectors"] if "vectors" in batch else self._encode_judgments(batch)
        judgments = self.judgment(vectors, batch["mask"].sum(1))
        scores: Tensor = self.head(self.dropout(judgments))
        return scores

    def _encode_judgments(self, batch: Batch) -> Tensor:
        """Return the sentence vectors in the order of each judgment, (n, sentences, sentence)."""
        mask: Tensor = batch["mask"]
        vectors = torch.cat(
            [
                self.encode_sentences(words, lengths)
                for words, lengths in zip(batch["words"], batch["lengths"], strict=True)
            ]
        )
        rows = vectors.new_zeros(mask.numel(), vectors.shape[1]).index_copy(0, torch.cat(batch["places"]), vectors)
        return rows.view(*mask.shape, -1)

    def encode_sentences(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Return the vector of each sentence, (n, sentence): the final states of both directions."""
        states = self.sentence(self.dropout(self.words(words)), lengths)
        forward_states, backward_states = states.chunk(2, dim=-1)
        last = (lengths - 1)[:, None, None].expand(-1, 1, forward_states.shape[-1])
        return torch.cat([forward_states.gather(1, last)[:, 0], backward_states[:, 0]], dim=-1)
