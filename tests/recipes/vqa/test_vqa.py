import subprocess
import sys

import pytest
import torch
from torch import nn

from shoestring.errors import QuestionError
from shoestring.recipe import find, option_fields
from shoestring.recipes.vqa import VQA, Options
from shoestring.recipes.vqa.student import IGNORED, Batch
from shoestring.techniques import checkpointing

TINY = {"size": "tiny", "q_len": 6, "a_len": 5}


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return VQA(Options(**TINY)).model().eval()


def drawn(size: int) -> Batch:
    torch.manual_seed(1)
    images, questions, mask, texts = VQA(Options(**TINY)).batch(size)
    texts = torch.randint(2, 128, texts.shape)
    return torch.randn_like(images), torch.randint(2, 128, questions.shape), mask, texts


def test_it_is_built_in_and_every_option_is_explained() -> None:
    found = find("vqa")
    assert isinstance(found.recipe, VQA)
    assert (found.epochs, found.effective_batch, found.seed) == (100, 9, 42)
    assert all(field.help for field in option_fields(found).values())


def test_looking_at_it_needs_neither_torch_nor_transformers() -> None:
    script = "import sys, shoestring.recipes.vqa; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoestring.extras.find_spec", lambda name: None)
    with pytest.raises(QuestionError, match="transformers") as refused:
        VQA().model()
    assert "shoestring[vqa]" in refused.value.hint


def test_every_bad_option_is_named_at_once() -> None:
    with pytest.raises(QuestionError) as refused:
        Options(q_len=257, a_len=0, learning_rate=0.0)
    assert {problem.split("=")[0] for problem in refused.value.problems} == {"q_len", "a_len", "learning_rate"}


def test_the_full_model_has_the_published_number_of_parameters_in_every_part() -> None:
    with torch.device("meta"):
        model = VQA().model()
    counts = {name: sum(x.numel() for x in part.parameters()) for name, part in model.named_children()}
    assert counts == {"vision": 86_090_496, "text": 134_998_272, "writer": 225_950_976, "fusion": 3_541_248}
    assert sum(x.numel() for x in model.parameters()) == 450_580_992


def test_a_full_batch_has_the_published_shapes() -> None:
    with torch.device("meta"):
        images, questions, mask, texts = VQA().batch(3)
    assert images.shape == (3, 3, 384, 384) and questions.shape == mask.shape == (3, 64) and texts.shape == (3, 3, 160)


def test_sharing_the_encoders_changes_no_gradient() -> None:
    gradients = []
    for forwards in ("shared", "guide"):
        recipe = VQA(Options(**TINY, forwards=forwards))
        torch.manual_seed(0)
        model = recipe.model().eval()
        recipe.loss(model, drawn(3)).backward()
        gradients.append({name: x.grad for name, x in model.named_parameters()})
    shared, guide = gradients
    assert {name for name, gradient in shared.items() if gradient is None} == {
        "text.pooler.dense.weight",
        "text.pooler.dense.bias",
    }
    torch.testing.assert_close(shared, guide)


def test_the_encoders_are_shared_unless_asked_otherwise(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(
        model.vision,
        "forward",
        lambda *, pixel_values, see=model.vision.forward: (seen.append(1), see(pixel_values=pixel_values))[1],
    )
    VQA(Options(**TINY)).loss(model, drawn(2))
    assert len(seen) == 1
    VQA(Options(**TINY, forwards="guide")).loss(model, drawn(2))
    assert len(seen) == 4


def test_checkpointing_changes_no_gradient_and_keeps_less() -> None:
    found = {}
    for setting in ("full", "2", "no"):
        recipe = VQA(Options(**TINY))
        torch.manual_seed(0)
        model = recipe.model().train()
        assert checkpointing.apply(model, recipe, setting) == {"full": 8, "2": 2, "no": 0}[setting]
        assert model.writer.decoder.block[1].gradient_checkpointing == (setting != "no")
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        for config in (model.vision.config, model.text.config, model.writer.config):
            config.attention_dropout = config.attention_probs_dropout_prob = config.dropout_rate = 0.0
        for module in model.modules():
            if hasattr(module, "dropout") and isinstance(module.dropout, float):
                module.dropout = 0.0
        kept = 0

        def count(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal kept
            kept += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            loss = recipe.loss(model, drawn(2))
        loss.backward()
        found[setting] = kept, [x.grad for x in model.parameters()]
    assert found["full"][0] < found["2"][0] < found["no"][0]
    torch.testing.assert_close(found["full"][1], found["no"][1])


def test_padding_weighs_nothing_and_every_sample_the_same(model: nn.Module) -> None:
    recipe = VQA(Options(**TINY))
    images, questions, mask, texts = drawn(2)
    texts[0, :, 2:] = IGNORED
    both = recipe.loss(model, (images, questions, mask, texts))
    single = [
        recipe.loss(model, tuple(part[index : index + 1] for part in (images, questions, mask, texts)))
        for index in range(2)
    ]
    torch.testing.assert_close(both, (single[0] + single[1]) / 2)
    shorter = images[:1], questions[:1], mask[:1], texts[:1, :, :2]
    torch.testing.assert_close(recipe.loss(model, shorter), single[0])


def test_the_three_texts_weigh_as_published(model: nn.Module) -> None:
    recipe = VQA(Options(**TINY))
    images, questions, mask, texts = drawn(2)
    context = model.encode(images, questions, mask)
    alone = [model.cross_entropy(context, texts[:, place]).mean() for place in range(3)]
    expected = 0.60 * alone[0] + 0.35 * alone[1] + 0.05 * alone[2]
    torch.testing.assert_close(recipe.loss(model, (images, questions, mask, texts)), expected)
