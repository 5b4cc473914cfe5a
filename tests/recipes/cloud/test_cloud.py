import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from shoestring.errors import UsageError
from shoestring.recipe.finding import find
from shoestring.recipe.options import option_fields
from shoestring.recipes.cloud import Cloud, Options, filtering

TINY = Options(size="tiny", crop=32)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_it_is_built_in_and_every_option_is_explained() -> None:
    found = find("cloud")
    assert isinstance(found.recipe, Cloud)
    assert (found.epochs, found.effective_batch, found.seed) == (30, 4, 42)
    assert all(field.help for field in option_fields(found).values())


def test_looking_at_it_does_not_need_torch() -> None:
    script = "import sys, shoestring.recipes.cloud; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_files_need_the_extra_and_synthetic_tiles_do_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(UsageError, match="not installed: tifffile") as missing:
        Cloud(Options(data=tmp_path)).data()
    assert "pip install 'shoestring[cloud]'" in str(missing.value)
    assert set(Cloud(TINY).data()) == {"train", "validation", "test"}


def test_every_bad_option_is_named_at_once() -> None:
    with pytest.raises(UsageError) as refused:
        Options(crop=40, learning_rate=0.0, clip_norm=0.0, table=Path("data.csv"))
    assert [problem.split("=")[0] for problem in refused.value.problems] == [
        "crop",
        "table",
        "learning_rate",
        "clip_norm",
    ]
    with pytest.raises(UsageError, match="cannot be used") as too_large:
        Options(crop=272)
    assert "synthetic tiles have 256" in too_large.value.problems[0]
    Options(crop=272, data=Path("elsewhere"))
    with pytest.raises(UsageError, match="crop"):
        Options(crop=0)
    Options(crop=16)


def test_the_full_model_has_the_published_number_of_parameters_in_every_part() -> None:
    with torch.device("meta"):
        model = Cloud().model()
    filters = sum(parameters(fusion.kernels) for fusion in model.fusions)
    assert (parameters(model.blocks), filters) == (9_652_320, 4_385_664)
    assert parameters(model) == 14_827_373


def test_a_full_step_can_be_followed_by_shapes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # In as few parts as on a GPU: to follow a step by shapes takes as long as it has operators.
    monkeypatch.setitem(filtering.KERNELS, "cpu", filtering.MANY_KERNELS)
    recipe = Cloud()
    with FakeTensorMode():
        model = recipe.model()
        recipe.loss(model, recipe.batch(2)).backward()
        assert model(*recipe.batch(2)[:2]).shape == (2, 13, 128, 128)


def test_an_update_reaches_every_parameter_but_the_last_radar_gate() -> None:
    recipe = Cloud(TINY)
    torch.manual_seed(0)
    model = recipe.model()
    recipe.loss(model, tuple(torch.rand_like(image) for image in recipe.batch(2))).backward()
    untouched = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert untouched == ["fusions.1.gates.1.weight", "fusions.1.gates.1.bias"]


def test_it_learns_one_image() -> None:
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


def test_samples_do_not_see_each_other() -> None:
    recipe = Cloud(TINY)
    torch.manual_seed(0)
    model = recipe.model().eval()
    cloudy, radar, _ = (torch.rand_like(image) for image in recipe.batch(2))
    torch.testing.assert_close(model(cloudy, radar)[1:], model(cloudy[1:], radar[1:]))


def test_gradients_are_clipped_where_that_is_chosen() -> None:
    assert (Cloud().clip_norm, Cloud(Options(clip_norm=1.0)).clip_norm) == (None, 1.0)
