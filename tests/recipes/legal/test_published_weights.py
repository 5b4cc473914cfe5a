"""Whole classifiers of other programs give the same probabilities here."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, BertModel

from shoestring.base.errors import CheckpointError, UsageError
from shoestring.training.checkpoint.light import save_light
from shoestring_recipes.legal import Legal, Options
from shoestring_recipes.legal.roles import SETS
from tests.integrations.huggingface.test_pretrained import write_bert

ROLES = SETS["legalseg"]
TOKENS = torch.tensor([[2, 5, 6, 7, 3, 0], [2, 6, 6, 5, 7, 3]])
MASK = (TOKENS > 0).long()


class GuideClassifier(nn.Module):
    """The modules of the guide's `InLegalBERTClassifier`."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config)
        self.classifier = nn.Linear(config.hidden_size, len(ROLES))


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    write_bert(tmp_path / "bert")
    return tmp_path / "bert"


def load(path: Path, encoder: Path | None, **options: str) -> torch.Tensor:
    model = Legal(Options(encoder=None if encoder is None else str(encoder), **options)).pretrained(path)
    with torch.no_grad():
        return model.eval()(TOKENS, MASK)


def test_a_classifier_of_transformers(encoder: Path, tmp_path: Path) -> None:
    labels = ROLES[::-1]
    config = BertConfig.from_pretrained(encoder, id2label=dict(enumerate(labels)), label2id={})
    model = BertForSequenceClassification(config).eval()
    folder = tmp_path / "published"
    model.save_pretrained(folder)
    with torch.no_grad():
        expected = model(input_ids=TOKENS, attention_mask=MASK).logits
    torch.testing.assert_close(load(folder, encoder), expected.flip(1))
    torch.testing.assert_close(load(folder, folder, roles=",".join(labels)), expected)
    with pytest.raises(UsageError, match=r"have the classes Decision, Reasoning.* but the roles are Facts"):
        load(folder, encoder, roles="law-ai")
    with pytest.raises(UsageError, match="need their tokenizer") as refused:
        load(folder, None)
    assert refused.value.hint == f"set encoder={folder}"


def test_a_checkpoint_of_the_guide(encoder: Path, tmp_path: Path) -> None:
    """Its classes are in alphabetical order, and it contains metrics as NumPy's scalars."""
    model = GuideClassifier(BertConfig.from_pretrained(encoder)).eval()
    file = tmp_path / "best_model.pt"
    history = {"val_f1": [np.float64(0.5)], "epoch": [1]}
    torch.save({"model_state_dict": model.state_dict(), "model_type": "inlegalbert", "history": history}, file)
    with torch.no_grad():
        logits = model.classifier(model.bert(input_ids=TOKENS, attention_mask=MASK).pooler_output)
    expected = torch.stack([logits[:, sorted(ROLES).index(role)] for role in ROLES], dim=1)
    torch.testing.assert_close(load(file, encoder), expected)
    torch.save({"model_state_dict": model.bert.state_dict()}, file)
    with pytest.raises(CheckpointError, match="another model"):
        load(file, encoder)


def test_weights_of_a_run(encoder: Path, tmp_path: Path) -> None:
    recipes = Legal(Options(encoder=str(encoder))), Legal(Options(architecture="hier_bilstm_crf", size="tiny"))
    for number, recipe in enumerate(recipes):
        model = recipe.model()
        save_light(tmp_path / f"best-{number}", model, {})
        loaded = recipe.pretrained(tmp_path / f"best-{number}").state_dict()
        assert all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())
