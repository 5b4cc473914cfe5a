import subprocess
import sys

import pytest
import torch
from torch import nn

from shoestring.errors import UsageError
from shoestring.recipe.finding import find
from shoestring.recipe.options import option_fields
from shoestring.recipes.chart import IMAGE_TOKENS, Chart, Options
from shoestring.recipes.chart.policy import SIZES, Batch, log_probabilities
from shoestring.techniques import checkpointing

TINY = {"size": "tiny", "prompt_len": 40, "completion_len": 6, "weights": "fp32"}


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return Chart(Options(**TINY)).model().eval()


def drawn(size: int) -> Batch:
    torch.manual_seed(1)
    batch = Chart(Options(**TINY)).batch(size)
    words = torch.randint(6, 512, batch.tokens.shape)
    tokens = torch.where(batch.tokens == SIZES["tiny"].image_token, batch.tokens, words)
    return batch._replace(tokens=tokens, patches=torch.randn_like(batch.patches), advantages=torch.randn(size))


def test_it_is_built_in_and_every_option_is_explained() -> None:
    found = find("chart")
    assert isinstance(found.recipe, Chart)
    assert (found.epochs, found.effective_batch, found.seed) == (4, 4, 42)
    assert all(field.help for field in option_fields(found).values())


def test_looking_at_it_needs_neither_torch_nor_transformers() -> None:
    script = "import sys, shoestring.recipes.chart; assert not {'torch', 'transformers', 'peft'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_without_its_packages_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoestring.recipe.extras.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="transformers, peft") as refused:
        Chart().model()
    assert "shoestring[chart]" in refused.value.hint


def test_every_bad_option_is_named_at_once() -> None:
    with pytest.raises(UsageError) as refused:
        Options(prompt_len=320, completion_len=0, lora_r=0, learning_rate=0.0)
    named = {problem.split("=")[0] for problem in refused.value.problems}
    assert named == {"prompt_len", "completion_len", "lora_r", "learning_rate"}


@pytest.mark.parametrize(("generations", "effective_batch"), [(1, 4), (3, 4), (4, 6)])
def test_an_update_is_made_of_whole_groups(generations: int, effective_batch: int) -> None:
    with pytest.raises(UsageError, match="options of chart"):
        Options(generations=generations, effective_batch=effective_batch)
    assert Options(generations=3, effective_batch=6).written_at_once is None


def test_the_full_model_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        model = Chart().model()
    trainable = sum(x.numel() for x in model.parameters() if x.requires_grad)
    total = sum(x.numel() for x in model.parameters())
    assert (trainable, total, total - trainable) == (18_576_384, 3_773_199_360, 3_754_622_976)
    assert {x.dtype for x in model.parameters() if x.requires_grad} == {torch.float32}
    assert {x.dtype for x in model.parameters() if not x.requires_grad} == {torch.float16}
    assert model.images.tokens == IMAGE_TOKENS["full"]


def test_a_full_batch_has_the_published_shapes() -> None:
    batch = Chart().batch(2)
    assert batch.tokens.shape == batch.mask.shape == (2, 800 + 768)
    assert batch.positions.shape == (2, 3, 1568) and batch.patches.shape == (2, 1280, 1176)
    assert ((batch.tokens == 151_655).sum(dim=1) == 320).all()


def test_an_update_reaches_every_adapter(model: nn.Module) -> None:
    recipe = Chart(Options(**TINY))
    model.zero_grad()
    recipe.loss(model, drawn(2)).backward()
    assert all((x.grad is not None) == x.requires_grad for x in model.parameters())


def test_the_policy_is_what_transformers_makes_of_the_same_weights() -> None:
    """Through its own vision tower, its own windows and its own way to put images among words."""
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLVisionAttention

    torch.manual_seed(0)
    model, batch = Chart(Options(**TINY)).model().eval(), drawn(2)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.mul_(5)  # as initialised, attention is so even that it hardly matters to what
    ours = model(batch)
    base = model.adapted.get_base_model()
    for block in base.model.visual.blocks:
        theirs = Qwen2_5_VLVisionAttention(base.model.visual.config)
        theirs.load_state_dict(block.attn.state_dict())
        block.attn = theirs
    rows, columns = SIZES["tiny"].grid
    logits = base(
        input_ids=batch.tokens,
        attention_mask=batch.mask,
        position_ids=batch.positions.transpose(0, 1),
        pixel_values=batch.patches.flatten(0, 1),
        image_grid_thw=torch.tensor([[1, rows, columns]] * 2),
    ).logits
    expected = logits.log_softmax(dim=-1)[:, -7:-1].gather(-1, batch.tokens[:, -6:, None]).squeeze(-1)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_log_probabilities_are_those_of_a_softmax() -> None:
    torch.manual_seed(0)
    logits, tokens = torch.randn(2, 3, 11), torch.randint(0, 11, (2, 3))
    expected = logits.softmax(dim=-1).gather(-1, tokens[..., None]).squeeze(-1).log()
    torch.testing.assert_close(log_probabilities(logits, tokens), expected)


def test_the_loss_is_minus_the_mean_of_log_probability_times_advantage(model: nn.Module) -> None:
    recipe, batch = Chart(Options(**TINY)), drawn(2)
    batch.completions[0, 2:] = 0
    found = model(batch)
    each = torch.stack((found[0, :2].mean(), found[1].mean())) * batch.advantages
    torch.testing.assert_close(recipe.loss(model, batch), -each.mean())


def test_checkpointing_keeps_less_and_changes_no_gradient() -> None:
    found = {}
    for setting in ("full", "no"):
        recipe = Chart(Options(**TINY))
        torch.manual_seed(0)
        model = recipe.model().train()
        assert checkpointing.apply(model, recipe, setting) == {"full": 4, "no": 0}[setting]
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        kept = []

        def keep(tensor: torch.Tensor, kept: list[int] = kept) -> torch.Tensor:
            kept.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = recipe.loss(model, drawn(2))
        loss.backward()
        found[setting] = sum(kept), [x.grad for x in model.parameters() if x.requires_grad]
    assert found["full"][0] < found["no"][0]
    torch.testing.assert_close(found["full"][1], found["no"][1])


def test_4_bit_weights_are_as_many_in_fewer_bytes() -> None:
    def made(quantization: str) -> list[nn.Parameter]:
        return list(Chart(Options(size="tiny", weights="fp16", quantization=quantization)).model().parameters())

    whole, packed = made("none"), made("nf4")
    assert sum(getattr(weight, "unpacked_numel", weight.numel()) for weight in packed) == sum(
        weight.numel() for weight in whole
    )
    frozen = [[weight for weight in weights if not weight.requires_grad] for weights in (whole, packed)]
    of_whole, of_packed = (sum(weight.nbytes for weight in weights) for weights in frozen)
    embedding = 2 * 512 * 64
    assert of_packed - embedding < 0.5 * (of_whole - embedding)
    assert {weight.dtype for weight in frozen[1]} == {torch.uint8, torch.float16}
