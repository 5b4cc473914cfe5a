import subprocess
import sys

import pytest
import torch

from shoestring.errors import QuestionError
from shoestring.recipe import find, option_fields
from shoestring.recipes.legal import Legal, Options

TINY = Options(size="tiny", seq_len=12)


def test_it_is_built_in_and_every_option_is_explained() -> None:
    found = find("legal")
    assert isinstance(found.recipe, Legal)
    assert (found.epochs, found.effective_batch, found.seed) == (5, 16, 42)
    assert all(field.help for field in option_fields(found).values())


def test_looking_at_it_needs_neither_torch_nor_transformers() -> None:
    script = "import sys, shoestring.recipes.legal; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoestring.extras.find_spec", lambda name: None)
    with pytest.raises(QuestionError, match="transformers") as refused:
        Legal().model()
    assert "shoestring[legal]" in refused.value.hint


def test_every_bad_option_is_named_at_once() -> None:
    with pytest.raises(QuestionError) as refused:
        Options(seq_len=513, learning_rate=0.0)
    assert [problem.split("=")[0] for problem in refused.value.problems] == ["seq_len", "learning_rate"]
    with pytest.raises(QuestionError, match="seq_len"):
        Options(seq_len=0)
    Options(seq_len=1)


def test_the_full_model_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        model = Legal().model()
    assert sum(parameter.numel() for parameter in model.parameters()) == 109_487_623


def test_an_update_reaches_every_parameter() -> None:
    recipe = Legal(TINY)
    model = recipe.model()
    tokens, mask, roles = recipe.batch(3)
    assert tokens.shape == mask.shape == (3, 12) and roles.shape == (3,)
    recipe.loss(model, (tokens, mask, roles)).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_padding_changes_nothing() -> None:
    recipe = Legal(TINY)
    torch.manual_seed(0)
    model = recipe.model().eval()
    tokens = torch.randint(1, 512, (2, 12))
    mask = torch.ones_like(tokens)
    mask[:, 8:] = 0
    other = tokens.clone()
    other[:, 8:] = 7
    seen = model(tokens, mask)
    torch.testing.assert_close(seen, model(other, mask))
    assert not torch.allclose(seen, model(other, torch.ones_like(mask)), rtol=0, atol=1e-5)
