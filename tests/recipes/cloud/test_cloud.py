import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from shoestring.base.errors import UsageError
from shoestring.recipe.finding import find
from shoestring.recipe.options import option_fields
from shoestring_recipes.cloud import Cloud, Options, filtering
from tests.libraries import hide

TINY = Options(size="tiny", crop=32)


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_recipe_is_built_in_and_documents_every_option() -> None:
    loaded = find("cloud")
    assert isinstance(loaded.recipe, Cloud)
    assert (loaded.epochs, loaded.effective_batch, loaded.seed) == (30, 4, 42)
    assert all(field.help for field in option_fields(loaded).values())


@pytest.mark.slow
def test_torch_and_the_extra_are_imported_when_they_are_used() -> None:
    script = (
        "import sys; from shoestring_recipes.cloud import Cloud, Options; assert 'torch' not in sys.modules\n"
        "recipe = Cloud(Options(size='tiny')); model = recipe.model().eval(); sample = recipe.data()['test'][0]\n"
        "recipe.predict(model, recipe.collate([sample])); assert 'tifffile' not in sys.modules  # of the extra"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_only_image_files_need_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hide(monkeypatch, "tifffile")
    with pytest.raises(UsageError, match=r"^tifffile is not installed") as error:
        Cloud(Options(data=tmp_path)).data()
    assert "[cloud]" in error.value.hint
    assert set(Cloud(TINY).data()) == {"train", "validation", "test"}


def test_all_invalid_options_are_reported_at_once() -> None:
    with pytest.raises(UsageError) as error:
        Options(crop=40, learning_rate=0.0, clip_norm=0.0, table=Path("data.csv"))
    assert [problem.split("=")[0] for problem in error.value.problems] == [
        "crop",
        "table",
        "learning_rate",
        "clip_norm",
    ]
    with pytest.raises(UsageError, match="cannot be used") as too_large:
        Options(crop=272)
    assert "synthetic tiles have only 256" in too_large.value.problems[0]
    Options(crop=272, data=Path("elsewhere"))
    with pytest.raises(UsageError, match="crop"):
        Options(crop=0)
    Options(crop=16)


def test_full_model_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        model = Cloud().model()
    filter_count = sum(count_parameters(fusion.kernels) for fusion in model.fusions)
    assert (count_parameters(model.blocks), filter_count) == (9_652_320, 4_385_664)
    assert count_parameters(model) == 14_827_373


@pytest.mark.slow
def test_a_full_step_runs_on_fake_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    # With the row blocks of a GPU, because the time on fake tensors grows with the number of operators.
    monkeypatch.setitem(filtering.KERNEL_BUDGET, "cpu", filtering.DEFAULT_KERNEL_BUDGET)
    recipe = Cloud()
    with FakeTensorMode():
        model = recipe.model()
        recipe.loss(model, recipe.batch(2)).backward()
        assert model(*recipe.batch(2)[:2]).shape == (2, 13, 128, 128)


def test_all_parameters_but_the_last_radar_gate_get_gradients() -> None:
    recipe = Cloud(TINY)
    torch.manual_seed(0)
    model = recipe.model()
    recipe.loss(model, tuple(torch.rand_like(image) for image in recipe.batch(2))).backward()
    without_gradient = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert without_gradient == ["fusions.1.gates.1.weight", "fusions.1.gates.1.bias"]


def test_model_overfits_one_image() -> None:
    recipe = Cloud(Options(size="tiny", crop=16, learning_rate=3e-3))
    torch.manual_seed(0)
    model, batch = recipe.model(), tuple(torch.rand_like(image) for image in recipe.batch(1))
    optimizer, losses = recipe.optimizer(model), []
    for _ in range(30):
        loss = recipe.loss(model, batch)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.9 * losses[0]


def test_samples_of_a_batch_are_independent() -> None:
    recipe = Cloud(TINY)
    torch.manual_seed(0)
    model = recipe.model().eval()
    cloudy, radar, _ = (torch.rand_like(image) for image in recipe.batch(2))
    torch.testing.assert_close(model(cloudy, radar)[1:], model(cloudy[1:], radar[1:]))


def test_gradients_are_clipped_only_if_requested() -> None:
    assert (Cloud().clip_norm, Cloud(Options(clip_norm=1.0)).clip_norm) == (None, 1.0)
