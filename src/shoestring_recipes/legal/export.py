"""The classifier as a model of transformers, and both networks as ONNX graphs."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from shoestring.integrations.huggingface.saving import quiet
from shoestring.recipe.exports import Exported, OnnxGraph
from shoestring.training.data.padding import pad_batch
from shoestring_recipes.legal.bilstm import BiLSTM
from shoestring_recipes.legal.onnx_lstm import OnnxLSTM

if TYPE_CHECKING:
    from shoestring_recipes.legal.classifier import RoleClassifier
    from shoestring_recipes.legal.hierarchical import HierarchicalBiLSTM

_CLASSIFIER_NOTES = [
    "A text is the token of the beginning, then each sentence of the context followed by the separator: with the "
    "context `previous`, the sentence before and the sentence to classify. A sentence that does not exist is empty.",
    "The tokens have no types (`token_type_ids` are 0).",
]

_PRETRAINED_USAGE = """\
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = AutoModelForSequenceClassification.from_pretrained(".").eval()

before, sentence = "The appellant filed a suit.", "The High Court dismissed the appeal."
inputs = tokenizer(before, sentence, truncation="only_first", return_tensors="pt")
with torch.no_grad():
    probabilities = model(**inputs).logits.softmax(-1)[0]
print(model.config.id2label[int(probabilities.argmax())], float(probabilities.max()))
"""

_HASHED_USAGE = """\
import re
from zlib import crc32

import torch
from transformers import AutoModelForSequenceClassification

model = AutoModelForSequenceClassification.from_pretrained(".").eval()


def tokenize(sentence):
    words = re.findall(r"\\w+|[^\\w\\s]", sentence.casefold())
    return [3 + crc32(re.sub(r"\\d", "0", word).encode()) % (model.config.vocab_size - 3) for word in words]


before, sentence = "The appellant filed a suit.", "The High Court dismissed the appeal."
tokens = [1, *tokenize(before), 2, *tokenize(sentence), 2]
with torch.no_grad():
    probabilities = model(input_ids=torch.tensor([tokens])).logits.softmax(-1)[0]
print(model.config.id2label[int(probabilities.argmax())], float(probabilities.max()))
"""


def write_classifier(
    model: RoleClassifier,
    folder: Path,
    batches: Sequence[Any],
    *,
    roles: Sequence[str],
    tokenizer: Any,
    max_tokens: int,
) -> Exported:
    """Write the classifier as `BertForSequenceClassification`, with the pretrained `tokenizer` if it has one."""
    from transformers import AutoModelForSequenceClassification, BertForSequenceClassification

    config = type(model.encoder.config).from_dict(
        {
            **model.encoder.config.to_dict(),
            "id2label": dict(enumerate(roles)),
            "label2id": {role: number for number, role in enumerate(roles)},
            "architectures": [BertForSequenceClassification.__name__],
            "classifier_dropout": model.dropout.p,
            "problem_type": "single_label_classification",
        }
    )
    prefixes = {"encoder": "bert", "head": "classifier"}
    state = {
        f"{prefixes[part]}.{name}": tensor
        for part, _, name, tensor in ((*key.partition("."), tensor) for key, tensor in model.state_dict().items())
    }
    with torch.device("meta"):
        exported: Any = BertForSequenceClassification(config)
    exported.load_state_dict(state, strict=False, assign=True)
    with quiet():
        exported.save_pretrained(folder)
    if tokenizer is not None:
        # The network was trained without types of tokens, and on texts whose context is truncated at its beginning.
        names = ["input_ids", "attention_mask"]
        values = {"truncation_side": "left", "model_max_length": max_tokens, "model_input_names": names}
        for name, value in values.items():
            setattr(tokenizer, name, value)
        tokenizer.init_kwargs.update(values)  # the names that are saved
        tokenizer.save_pretrained(folder)
    with quiet():
        loaded: Any = AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True).eval()
    hashed = (
        "There is no tokenizer file: the ids of words are their CRC-32, reduced to the size of the vocabulary, which "
        "no tokenizer of transformers can express. The code above tokenizes in the same way."
    )
    return Exported(
        compared=[
            (model(tokens, mask), loaded(input_ids=tokens, attention_mask=mask).logits) for tokens, mask, *_ in batches
        ],
        usage=_HASHED_USAGE if tokenizer is None else _PRETRAINED_USAGE,
        metadata={"library_name": "transformers", "pipeline_tag": "text-classification"},
        notes=[
            *_CLASSIFIER_NOTES,
            f"Texts have at most {max_tokens} tokens.",
            *([hashed] if tokenizer is None else []),
        ],
    )


def classifier_graph(model: RoleClassifier, roles: Sequence[str]) -> OnnxGraph:
    """Return the graph from tokens and their mask to the logits of the roles."""
    axes = {0: "batch", 1: "tokens"}
    return OnnxGraph(
        module=model,
        inputs={"input_ids": axes, "attention_mask": axes},
        outputs={"logits": {0: "batch"}},
        read=lambda batch: batch[:2],
        compute=lambda batch: [model(*batch[:2])],
        facts={"labels": list(roles)},
        notes=_CLASSIFIER_NOTES,
    )


class _Emissions(nn.Module):
    """The network as a function of two tensors, for any numbers of judgments, sentences and words."""

    def __init__(self, network: HierarchicalBiLSTM, *, has_words: bool) -> None:
        super().__init__()
        self.network, self.has_words = deepcopy(network), has_words
        for part in self.network.modules():
            if isinstance(part, BiLSTM):
                part.forwards, part.backwards = (
                    nn.ModuleList(map(OnnxLSTM, layers)) for layers in (part.forwards, part.backwards)
                )

    def forward(self, sentences: Tensor, lengths: Tensor) -> Tensor:
        """Map words (n, s, w) with the number of words of each sentence (n, s), or vectors (n, s, width) with the
        number of sentences of each judgment (n,), to emissions (n, s, roles).
        """
        if self.has_words:
            mask = lengths > 0
            vectors = self.network.encode_sentences(sentences.flatten(0, 1), lengths.flatten().clamp(min=1))
            sentences = vectors.unflatten(0, (sentences.shape[0], sentences.shape[1])) * mask[..., None]
        else:
            mask = torch.arange(sentences.shape[1], device=lengths.device) < lengths[:, None]
        emissions: Tensor = self.network({"vectors": sentences, "mask": mask})
        return emissions * mask[..., None]


def emission_graph(model: HierarchicalBiLSTM, roles: Sequence[str], *, has_words: bool) -> OnnxGraph:
    """Return the graph from judgments to the emissions of the CRF, whose scores are facts of the graph."""
    crf = model.crf
    sentences, notes = _WORDS if has_words else _VECTORS
    return OnnxGraph(
        module=_Emissions(model, has_words=has_words),
        inputs=sentences,
        outputs={"emissions": {0: "judgments", 1: "sentences"}},
        read=_read_words if has_words else _read_vectors,
        compute=lambda batch: [model(batch) * batch["mask"][..., None]],
        facts={
            "labels": list(roles),
            "crf": {name: getattr(crf, name).tolist() for name in ("first", "last", "transitions")},
        },
        notes=[
            *notes,
            "`emissions` (judgments, sentences, roles) float32 are the scores of each sentence, 0 for padding.",
            "The roles of a judgment are the sequence r with the largest sum of first[r_1], last[r_n], the emissions "
            "of its sentences and transitions[r_i][r_i+1] (Viterbi); `crf` in `graph.json` has these scores.",
        ],
    )


_COUNTS = {0: "judgments", 1: "sentences"}
_WORDS = (
    {"words": {**_COUNTS, 2: "words"}, "lengths": _COUNTS},
    [
        "`words` (judgments, sentences, words) int64 are the ids of the words, padded with 0.",
        "`lengths` (judgments, sentences) int64 are the numbers of words of the sentences, 0 for padding.",
        "The id of a word w is `3 + zlib.crc32(w.encode()) % (V - 3)` with the size V of the vocabulary, its digits "
        'replaced by 0; words are `re.findall(r"\\w+|[^\\w\\s]", sentence.casefold())`.',
    ],
)
_VECTORS = (
    {"vectors": _COUNTS, "lengths": {0: "judgments"}},
    [
        "`vectors` (judgments, sentences, width) float32 are the vectors of the sentences.",
        "`lengths` (judgments,) int64 are the numbers of sentences.",
    ],
)


def _read_words(batch: Any) -> list[Tensor]:
    """Return the words of all sentences in the order of the judgments, and the lengths of the sentences."""
    mask = batch["mask"]
    rows: list[Tensor] = [torch.zeros(0, dtype=torch.int64)] * mask.numel()
    for words, lengths, places in zip(batch["words"], batch["lengths"], batch["places"], strict=True):
        for row, length, place in zip(words, lengths.tolist(), places.tolist(), strict=True):
            rows[place] = row[:length]
    lengths = torch.tensor([len(row) for row in rows])
    return [pad_batch(rows, 0).unflatten(0, mask.shape), lengths.unflatten(0, mask.shape)]


def _read_vectors(batch: Any) -> list[Tensor]:
    return [batch["vectors"], batch["mask"].sum(1)]
