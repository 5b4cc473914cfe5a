import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from shoestring.base.errors import UsageError
from shoestring.planning.trace import simulated_device
from shoestring.recipe.finding import find
from shoestring.recipe.options import option_fields
from shoestring.techniques import checkpointing
from shoestring_recipes.chart import IMAGE_TOKENS, Chart, Options
from shoestring_recipes.chart.policy import SIZES, Batch, log_probabilities
from tests.libraries import hide

TINY = {"size": "tiny", "prompt_len": 40, "completion_len": 6, "weights": "fp32"}


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return Chart(Options(**TINY)).model().eval()


def make_batch(size: int) -> Batch:
    torch.manual_seed(1)
    batch = Chart(Options(**TINY)).batch(size)
    words = torch.randint(6, 512, batch.tokens.shape)
    tokens = torch.where(batch.tokens == SIZES["tiny"].image_token, batch.tokens, words)
    return batch._replace(tokens=tokens, patches=torch.randn_like(batch.patches), advantages=torch.randn(size))


def test_recipe_is_built_in_and_options_have_help() -> None:
    loaded = find("chart")
    assert isinstance(loaded.recipe, Chart)
    assert (loaded.epochs, loaded.effective_batch, loaded.seed) == (4, 4, 42)
    assert all(field.help for field in option_fields(loaded).values())


def test_import_needs_neither_torch_nor_transformers() -> None:
    script = "import sys, shoestring_recipes.chart; assert not {'torch', 'transformers', 'peft'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_missing_packages_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "transformers", "peft")
    with pytest.raises(UsageError, match="2 libraries are not installed") as refused:
        Chart().model()
    assert [problem.split()[0] for problem in refused.value.problems] == ["transformers", "peft"]
    assert "[chart]" in refused.value.hint


def test_invalid_options_are_all_reported() -> None:
    with pytest.raises(UsageError) as refused:
        Options(prompt_len=320, completion_len=0, lora_r=0, learning_rate=0.0)
    reported = {problem.split("=")[0] for problem in refused.value.problems}
    assert reported == {"prompt_len", "completion_len", "lora_r", "learning_rate"}


@pytest.mark.parametrize(("generations", "effective_batch"), [(1, 4), (3, 4), (4, 6)])
def test_an_update_is_made_of_whole_groups(generations: int, effective_batch: int) -> None:
    with pytest.raises(UsageError, match="options of chart"):
        Options(generations=generations, effective_batch=effective_batch)
    assert Options(generations=3, effective_batch=6).written_at_once is None


def test_full_model_has_the_published_parameter_count() -> None:
    model: Any = simulated_device.build(Chart().model)
    trainable = sum(x.numel() for x in model.parameters() if x.requires_grad)
    total = sum(x.numel() for x in model.parameters())
    assert (trainable, total, total - trainable) == (18_576_384, 3_773_199_360, 3_754_622_976)
    assert {x.dtype for x in model.parameters() if x.requires_grad} == {torch.float32}
    assert {x.dtype for x in model.parameters() if not x.requires_grad} == {torch.float16}
    assert model.images.tokens == IMAGE_TOKENS["full"]


def test_full_batch_has_the_published_shapes() -> None:
    batch = Chart().batch(2)
    assert batch.tokens.shape == batch.mask.shape == (2, 800 + 768)
    assert batch.positions.shape == (2, 3, 1568) and batch.patches.shape == (2, 1280, 1176)
    assert ((batch.tokens == 151_655).sum(dim=1) == 320).all()


def test_every_adapter_gets_a_gradient(model: nn.Module) -> None:
    recipe = Chart(Options(**TINY))
    model.zero_grad()
    recipe.loss(model, make_batch(2)).backward()
    assert all((x.grad is not None) == x.requires_grad for x in model.parameters())


def test_policy_matches_transformers_with_the_same_weights() -> None:
    """The reference has transformers' own vision tower, windows and insertion of images among the tokens."""
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLVisionAttention

    torch.manual_seed(0)
    model, batch = Chart(Options(**TINY)).model().eval(), make_batch(2)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.mul_(5)  # with initial weights attention is almost uniform, and errors in it would not show
    actual = model(batch)
    base = model.adapted.get_base_model()
    for block in base.model.visual.blocks:
        attention = Qwen2_5_VLVisionAttention(base.model.visual.config)
        attention.load_state_dict(block.attn.state_dict())
        block.attn = attention
    rows, columns = SIZES["tiny"].grid
    logits = base(
        input_ids=batch.tokens,
        attention_mask=batch.mask,
        position_ids=batch.positions.transpose(0, 1),
        pixel_values=batch.patches.flatten(0, 1),
        image_grid_thw=torch.tensor([[1, rows, columns]] * 2),
    ).logits
    expected = logits.log_softmax(dim=-1)[:, -7:-1].gather(-1, batch.tokens[:, -6:, None]).squeeze(-1)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_log_probabilities_match_softmax() -> None:
    torch.manual_seed(0)
    logits, tokens = torch.randn(2, 3, 11), torch.randint(0, 11, (2, 3))
    expected = logits.softmax(dim=-1).gather(-1, tokens[..., None]).squeeze(-1).log()
    torch.testing.assert_close(log_probabilities(logits, tokens), expected)


def test_loss_is_negative_mean_of_weighted_log_probabilities(model: nn.Module) -> None:
    recipe, batch = Chart(Options(**TINY)), make_batch(2)
    batch.completions[0, 2:] = 0
    log_probabilities = model(batch)
    means = torch.stack((log_probabilities[0, :2].mean(), log_probabilities[1].mean()))
    torch.testing.assert_close(recipe.loss(model, batch), -(means * batch.advantages).mean())


def test_checkpointing_saves_less_with_the_same_gradients() -> None:
    saved, gradients = {}, {}
    for setting in ("full", "no"):
        recipe = Chart(Options(**TINY))
        torch.manual_seed(0)
        model = recipe.model().train()
        assert checkpointing.apply(model, recipe, setting) == {"full": 4, "no": 0}[setting]
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        sizes = []

        def record_size(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(record_size, lambda tensor: tensor):
            loss = recipe.loss(model, make_batch(2))
        loss.backward()
        saved[setting] = sum(sizes)
        gradients[setting] = [x.grad for x in model.parameters() if x.requires_grad]
    assert saved["full"] < saved["no"]
    torch.testing.assert_close(gradients["full"], gradients["no"])


def test_4_bit_weights_take_fewer_bytes() -> None:
    def build_parameters(quantization: str) -> list[nn.Parameter]:
        return list(Chart(Options(size="tiny", weights="fp16", quantization=quantization)).model().parameters())

    whole, packed = build_parameters("none"), build_parameters("nf4")
    assert sum(getattr(weight, "unpacked_numel", weight.numel()) for weight in packed) == sum(
        weight.numel() for weight in whole
    )
    frozen = [[weight for weight in weights if not weight.requires_grad] for weights in (whole, packed)]
    whole_bytes, packed_bytes = (sum(weight.nbytes for weight in weights) for weights in frozen)
    embedding = 2 * 512 * 64
    assert packed_bytes - embedding < 0.5 * (whole_bytes - embedding)
    assert {weight.dtype for weight in frozen[1]} == {torch.uint8, torch.float16}


def test_double_quantization_takes_fewer_bytes_for_scales() -> None:
    def scale_bytes(double: bool) -> int:
        options = Options(size="tiny", weights="fp16", quantization="nf4", double_quantization=double)
        buffers = Chart(options).model().named_buffers()
        return sum(value.nbytes for name, value in buffers if name.endswith((".scales", ".scales_of_scales")))

    # A byte in place of four, and four more for 256 of them, of which small layers fill few.
    assert 0.25 < scale_bytes(True) / scale_bytes(False) < 0.35
    with pytest.raises(UsageError, match="options of chart") as refused:
        Options(double_quantization=True)
    assert "without quantization=nf4" in refused.value.problems[0]
