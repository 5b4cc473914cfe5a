import subprocess
import sys

import pytest
import torch
from torch import nn

from shoestring.base.errors import UsageError
from shoestring.planning.trace import simulated_device
from shoestring.recipe.finding import find
from shoestring.recipe.options import option_fields
from shoestring.techniques import checkpointing
from shoestring_recipes.vqa import VQA, Options
from shoestring_recipes.vqa.curriculum import ANSWER_FOCUS, FORMAT_LEARNING, Stage
from shoestring_recipes.vqa.student import IGNORED, Batch
from tests.libraries import hide

TINY = {"size": "tiny", "q_len": 6, "a_len": 5}
TEXTS = ("whole", "answer", "reasoning")


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return VQA(Options(**TINY)).model().eval()


def make_batch(size: int) -> Batch:
    torch.manual_seed(1)
    batch = VQA(Options(**TINY)).batch(size)
    whole, reasoning = (torch.randint(2, 128, batch.whole.shape) for _ in range(2))
    answer = whole[:, :4].clone()
    answer[0, 3:] = IGNORED
    return batch._replace(
        images=torch.randn_like(batch.images),
        questions=torch.randint(2, 128, batch.questions.shape),
        whole=whole,
        answer=answer,
        reasoning=reasoning,
    )


def test_recipe_is_built_in_and_options_have_help() -> None:
    loaded = find("vqa")
    assert isinstance(loaded.recipe, VQA)
    assert (loaded.epochs, loaded.effective_batch, loaded.seed) == (100, 9, 42)
    assert all(field.help for field in option_fields(loaded).values())


def test_import_needs_neither_torch_nor_transformers() -> None:
    script = "import sys, shoestring_recipes.vqa; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_missing_transformers_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "transformers")
    with pytest.raises(UsageError, match="transformers") as refused:
        VQA().model()
    assert "[vqa]" in refused.value.hint


def test_invalid_options_are_all_reported() -> None:
    with pytest.raises(UsageError) as refused:
        Options(q_len=257, a_len=0, learning_rate=0.0)
    assert {problem.split("=")[0] for problem in refused.value.problems} == {"q_len", "a_len", "learning_rate"}


def test_full_model_has_the_published_parameter_counts() -> None:
    model = simulated_device.build(VQA().model)
    counts = {name: sum(x.numel() for x in part.parameters()) for name, part in model.named_children()}
    assert counts == {"vision": 86_090_496, "text": 134_998_272, "writer": 225_950_976, "fusion": 3_541_248}
    assert sum(x.numel() for x in model.parameters()) == 450_580_992


def test_full_batch_has_the_published_shapes() -> None:
    with torch.device("meta"):
        batch = VQA().batch(3)
    assert batch.images.shape == (3, 3, 384, 384) and batch.questions.shape == batch.mask.shape == (3, 64)
    assert batch.whole.shape == batch.answer.shape == batch.reasoning.shape == (3, 160)


def test_shared_forwards_give_the_same_gradients() -> None:
    gradients = []
    for forwards in ("shared", "guide"):
        recipe = VQA(Options(**TINY, forwards=forwards))
        torch.manual_seed(0)
        model = recipe.model().eval()
        recipe.loss(model, make_batch(3)).backward()
        gradients.append({name: x.grad for name, x in model.named_parameters()})
    shared, guide = gradients
    assert {name for name, gradient in shared.items() if gradient is None} == {
        "text.pooler.dense.weight",
        "text.pooler.dense.bias",
    }
    torch.testing.assert_close(shared, guide)


def test_encoders_run_once_by_default(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    original = model.vision.forward

    def record_size(*, pixel_values: torch.Tensor) -> object:
        sizes.append(len(pixel_values))
        return original(pixel_values=pixel_values)

    monkeypatch.setattr(model.vision, "forward", record_size)
    VQA(Options(**TINY)).loss(model, make_batch(2))
    assert len(sizes) == 1
    VQA(Options(**TINY, forwards="guide")).loss(model, make_batch(2))
    assert len(sizes) == 4


def test_checkpointing_saves_less_with_the_same_gradients() -> None:
    saved, gradients = {}, {}
    for setting in ("full", "2", "no"):
        recipe = VQA(Options(**TINY))
        torch.manual_seed(0)
        model = recipe.model().train()
        assert checkpointing.apply(model, recipe, setting) == {"full": 5, "2": 2, "no": 0}[setting]
        assert model.writer.decoder.block[0].gradient_checkpointing == (setting != "no")
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        for config in (model.vision.config, model.text.config, model.writer.config):
            config.attention_dropout = config.attention_probs_dropout_prob = config.dropout_rate = 0.0
        for module in model.modules():
            if hasattr(module, "dropout") and isinstance(module.dropout, float):
                module.dropout = 0.0
        saved_values = 0

        def count(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal saved_values
            saved_values += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            loss = recipe.loss(model, make_batch(2))
        loss.backward()
        saved[setting], gradients[setting] = saved_values, [x.grad for x in model.parameters()]
    assert saved["full"] < saved["2"] < saved["no"]
    torch.testing.assert_close(gradients["full"], gradients["no"])


def test_padding_weighs_nothing_and_every_sample_the_same(model: nn.Module) -> None:
    recipe = VQA(Options(**TINY))
    batch = make_batch(2)
    for name in TEXTS:
        getattr(batch, name)[0, 2:] = IGNORED
    batch_loss = recipe.loss(model, batch)
    losses = [recipe.loss(model, Batch(*(part[index : index + 1] for part in batch))) for index in range(2)]
    torch.testing.assert_close(batch_loss, (losses[0] + losses[1]) / 2)
    first = Batch(*(part[:1] for part in batch))
    shorter = first._replace(**{name: getattr(first, name)[:, :2] for name in TEXTS})
    torch.testing.assert_close(recipe.loss(model, shorter), losses[0])


@pytest.mark.parametrize("stage", [ANSWER_FOCUS, FORMAT_LEARNING, Stage(name="", format=0, answer=0, reasoning=1)])
def test_the_stage_weighs_the_three_texts(model: nn.Module, stage: Stage) -> None:
    recipe = VQA(Options(**TINY))
    batch = make_batch(2)
    context = model.encode(batch.images, batch.questions, batch.mask)
    whole, answer, reasoning = (model.cross_entropy(context, getattr(batch, name)).mean() for name in TEXTS)
    expected = stage.format * whole + stage.answer * answer + stage.reasoning * reasoning
    torch.testing.assert_close(recipe.loss(model, batch, stage), expected)
    if stage is ANSWER_FOCUS:
        torch.testing.assert_close(recipe.loss(model, batch), expected)


def test_a_reasoning_weighs_by_its_kind(model: nn.Module) -> None:
    recipe = VQA(Options(**TINY))
    batch = make_batch(2)
    reasoning_only = Stage(name="", format=0, answer=0, reasoning=1)
    context = model.encode(batch.images, batch.questions, batch.mask)
    first, second = model.cross_entropy(context, batch.reasoning)
    weighted = batch._replace(weights=torch.tensor([1.6, 0.4]))
    torch.testing.assert_close(recipe.loss(model, weighted, reasoning_only), (1.6 * first + 0.4 * second) / 2)
    torch.testing.assert_close(recipe.loss(model, weighted, ANSWER_FOCUS) - recipe.loss(model, batch, ANSWER_FOCUS),
                               0.05 * (0.6 * first - 0.6 * second) / 2)  # fmt: skip


def test_beam_search_texts_are_likelier_than_greedy(model: nn.Module) -> None:
    batch = make_batch(3)
    with torch.no_grad():
        context = model.encode(batch.images, batch.questions, batch.mask)
        losses = []
        for beams in (1, 8):
            texts = model.generate(context, [4], beams=beams, max_length=6)
            assert all(text[0] == 4 and len(text) <= 6 for text in texts)
            losses.append([_nll(model, context[[row]], text) for row, text in enumerate(texts)])
    assert all(wide <= greedy + 1e-4 for greedy, wide in zip(*losses, strict=True))
    assert losses[0] != losses[1], "beam search must find other texts than greedy search"


def _nll(model: nn.Module, context: torch.Tensor, text: list[int]) -> float:
    """Return the negative log-likelihood of a text up to its end token, which beam search minimizes."""
    unpadded = text[: text.index(1) + 1] if 1 in text else text
    return float(model.cross_entropy(context, torch.tensor([unpadded]))) * len(unpadded)


def test_generated_text_does_not_depend_on_the_batch(model: nn.Module) -> None:
    batch = make_batch(3)
    with torch.no_grad():
        context = model.encode(batch.images, batch.questions, batch.mask)
        batched = model.generate(context, [4], beams=3, max_length=8)
        single = [model.generate(context[[row]], [4], beams=3, max_length=8)[0] for row in range(3)]
    unpadded = [[token for token in text if token != 0] for text in batched]
    assert unpadded == [[token for token in text if token != 0] for text in single]


def test_target_texts_have_the_best_scores(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = VQA(Options(size="tiny", beams=3))
    train = recipe.data()["train"]
    batches = [recipe.collate([train[index] for index in indices]) for indices in ((0, 1, 2), (3, 4))]
    remaining = iter(batches)

    def generate(context: torch.Tensor, beginning: list[int], *, beams: int, max_length: int) -> list[list[int]]:
        assert (beams, max_length) == (3, 48)
        texts = [[token for token in text if token != IGNORED] for text in next(remaining).whole.tolist()]
        assert all(text[: len(beginning)] == beginning for text in texts)
        return texts

    monkeypatch.setattr(model, "generate", generate)
    with torch.no_grad():
        metrics = recipe.evaluate(model, iter(batches))
        losses = [model.cross_entropy(model.encode(*batch[:3]), batch.whole).sum() for batch in batches]
    assert metrics["exact_match"] == metrics["token_f1"] == metrics["well_formed"] == metrics["reasoning_rouge_l"] == 1
    assert metrics["reasoning_bleu"] == pytest.approx(100)
    assert metrics["loss"] == pytest.approx(float(sum(losses)) / 5)


def test_clip_norm_is_the_published_one() -> None:
    assert VQA().clip_norm == 1.0
