import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from shoestring.base.errors import DataError, UsageError
from shoestring.recipe.finding import find, load
from shoestring.recipe.options import option_fields
from shoestring_recipes.legal import Legal, Options
from tests.libraries import hide

TINY = Options(size="tiny", seq_len=12)
HIERARCHICAL = Options(architecture="hier_bilstm_crf", size="tiny", seq_len=12, max_sentences=9)


def test_recipe_is_built_in_and_documents_every_option() -> None:
    loaded = find("legal")
    assert isinstance(loaded.recipe, Legal)
    assert (loaded.epochs, loaded.effective_batch, loaded.seed) == (5, 16, 42)
    assert all(field.help for field in option_fields(loaded).values())


def test_import_needs_neither_torch_nor_transformers() -> None:
    script = "import sys, shoestring_recipes.legal; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_missing_transformers_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "transformers")
    with pytest.raises(UsageError, match="transformers") as error:
        Legal().model()
    assert "[legal]" in error.value.hint


def test_all_invalid_options_are_reported_at_once() -> None:
    with pytest.raises(UsageError) as error:
        Options(seq_len=513, learning_rate=0.0, patience=0, fold="6/5", roles="lawai")
    assert {problem.split("=")[0] for problem in error.value.problems} == {
        "seq_len", "learning_rate", "patience", "fold", "roles"
    }  # fmt: skip
    with pytest.raises(UsageError, match="seq_len"):
        Options(seq_len=7)
    Options(seq_len=8)


def test_classifier_options_are_refused_for_hier_bilstm_crf() -> None:
    with pytest.raises(UsageError) as error:
        Options(architecture="hier_bilstm_crf", class_weights="inverse", encoder="somewhere")
    assert len(error.value.problems) == 2


def test_the_full_model_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        model = Legal().model()
    assert sum(parameter.numel() for parameter in model.parameters()) == 109_487_623


def test_all_parameters_get_gradients() -> None:
    recipe = Legal(TINY)
    model = recipe.model()
    tokens, mask, roles = recipe.batch(3)
    assert tokens.shape == mask.shape == (3, 12) and roles.shape == (3,)
    recipe.loss(model, (tokens, mask, roles)).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_padding_does_not_change_the_output() -> None:
    recipe = Legal(TINY)
    torch.manual_seed(0)
    model = recipe.model().eval()
    tokens = torch.randint(1, 4096, (2, 12))
    mask = torch.ones_like(tokens)
    mask[:, 8:] = 0
    other_padding = tokens.clone()
    other_padding[:, 8:] = 7
    logits = model(tokens, mask)
    torch.testing.assert_close(logits, model(other_padding, mask))
    assert not torch.allclose(logits, model(other_padding, torch.ones_like(mask)), rtol=0, atol=1e-5)


def test_hierarchical_network_has_the_expected_parameters() -> None:
    def count_lstm(inputs: int, hidden: int) -> int:
        return 2 * 4 * hidden * (inputs + hidden + 2)

    with torch.device("meta"):
        model = Legal(Options(architecture="hier_bilstm_crf")).model()
    layers = count_lstm(100, 100) + count_lstm(200, 128) + count_lstm(256, 128)
    expected = 32_768 * 100 + layers + 257 * 7 + 7 * 7 + 2 * 7
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_all_hierarchical_parameters_get_gradients() -> None:
    recipe = Legal(HIERARCHICAL)
    model = recipe.model()
    total, sentences = recipe.loss(model, recipe.batch(3))
    assert sentences == 27
    total.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_head_has_one_class_per_role() -> None:
    for architecture in ("classifier", "hier_bilstm_crf"):
        model = Legal(Options(architecture=architecture, size="tiny", roles="build")).model()
        assert model.head.out_features == 13


def test_default_data_are_noted_as_synthetic() -> None:
    recipe = Legal(TINY)
    parts = recipe.data()
    assert set(parts) == {"train", "validation", "test"}
    assert "synthetic" in recipe.notes()[0]
    with pytest.raises(UsageError, match="synthetic"):
        Legal(Options(size="tiny", roles="law-ai")).data()


def test_random_weights_at_full_size_are_noted() -> None:
    recipe = Legal(Options())
    recipe.data()
    assert "weights are random" in recipe.notes()[-1] and recipe.random_parts() == ("encoder",)
    assert Legal(TINY).random_parts() == ()


def test_samples_are_sentences_or_judgments() -> None:
    assert len(Legal(TINY).data()["train"]) > 1000
    judgments = Options(architecture="hier_bilstm_crf", size="tiny")
    assert len(Legal(judgments).data()["train"]) == 64


def test_a_subset_keeps_each_roles_share() -> None:
    loaded = load("legal", {"size": "tiny", "subset": 0.5})
    whole, half = (load("legal", {"size": "tiny", "subset": share}).data()["train"] for share in (1, 0.5))
    whole_counts = torch.tensor([int(whole[index][2]) for index in range(len(whole))]).bincount(minlength=7)
    half_counts = torch.tensor([int(half[index][2]) for index in range(len(half))]).bincount(minlength=7)
    assert (whole_counts - 2 * half_counts).abs().max() <= 2
    assert len(loaded.data()["validation"]) > 100


def write_data(folder: Path, counts: dict[str, int]) -> Path:
    """Write eight equal judgments with `counts` sentences of each role."""
    judgment = "".join(f"sentence {number}\t{role}\n" for role, count in counts.items() for number in range(count))
    path = folder / "judgments.txt"
    path.write_text("\n".join([judgment] * 8))
    return path


def test_inverse_class_weights(tmp_path: Path) -> None:
    data = write_data(tmp_path, {"Facts": 3, "Issue": 1})
    recipe = Legal(Options(size="tiny", data=data, class_weights="inverse", seq_len=12))
    recipe.data()
    torch.manual_seed(0)
    model = recipe.model().eval()
    tokens, mask, _ = recipe.batch(3)
    truth = torch.tensor([1, 1, 2])
    total, weight = recipe.loss(model, (tokens, mask, truth))
    # The weight of a role is the mean frequency of all roles, 4/7 per judgment, divided by its own, 3 and 1.
    facts, issue = 4 / 7 / 3, 4 / 7
    assert float(weight) == pytest.approx(2 * facts + issue)
    losses = torch.nn.functional.cross_entropy(model(tokens, mask), truth, reduction="none")
    assert total.item() == pytest.approx((facts * (losses[0] + losses[1]) + issue * losses[2]).item())


def test_unusable_rows_are_refused_or_noted(tmp_path: Path) -> None:
    data = write_data(tmp_path, {"Facts": 2})
    data.write_text(data.read_text() + "no tab\n")
    with pytest.raises(DataError, match="no tab"):
        Legal(Options(size="tiny", data=data)).data()
    recipe = Legal(Options(size="tiny", data=data, on_bad_rows="skip"))
    recipe.data()
    assert any("1 of 17 rows" in note for note in recipe.notes())
    assert "train: all sentences have the class Facts: nothing can be learned from them" in recipe.notes()


@pytest.mark.parametrize("total", [10, 495, 20_000])
def test_the_rate_rises_and_falls_in_straight_lines(total: int) -> None:
    factors = [Legal(TINY).schedule(update, 0, total) for update in range(total)]
    warm_up = min(500, total // 10)
    assert factors[warm_up - 1] == 1 == max(factors)
    assert factors[0] == pytest.approx(1 / warm_up)
    assert 0 < factors[-1] < 2 / (total - warm_up)
    assert all(later < earlier for earlier, later in zip(factors[warm_up:], factors[warm_up + 1 :], strict=False))


@pytest.mark.parametrize("options", [TINY, HIERARCHICAL], ids=lambda options: options.architecture)
def test_metrics_do_not_depend_on_the_batch_size(options: Options) -> None:
    recipe = Legal(options)
    torch.manual_seed(0)
    model, data = recipe.model().eval(), recipe.data()["test"]

    def metrics(size: int) -> dict[str, Any]:
        batches = [
            recipe.collate([data[index] for index in range(start, min(start + size, len(data)))])
            for start in range(0, len(data), size)
        ]
        with torch.no_grad():
            return recipe.evaluate(model, batches)

    small_batches, one_batch = metrics(3), metrics(len(data))
    assert small_batches["loss"] == pytest.approx(one_batch["loss"])
    assert small_batches["classes"] == one_batch["classes"]
    assert sum(role["true"] for role in one_batch["classes"].values()) == 212
