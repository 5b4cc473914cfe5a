"""TRL's GRPO on the tiny policy: rewards increase, and a resumed run ends with the same bits."""

import json
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from PIL import Image

import shoestring
from shoestring.recipe.finding import choose
from shoestring.training.session.deadline import Deadline
from shoestring_recipes.chart import Chart, Options, building, training
from tests.recipes.chart.saved import make_row, save_dataset
from tests.runs.test_evaluate import planned
from tests.sessions import run_session

TINY = {
    "size": "tiny", "prompt_len": 300, "completion_len": 6, "weights": "fp32", "effective_batch": 16, "generations": 8,
    "learning_rate": 1e-2, "micro_batch": 8, "precision": "fp32",
}  # fmt: skip


class Digits(Chart):
    """A policy rewarded for digits, on a few charts."""

    count = 8

    def data(self):
        charts = super().data()["train"]
        return {"train": replace(charts, rows=charts.rows[: self.count])}

    def rewards(self):
        return {"digits": lambda completion, _: sum(map(str.isdigit, completion)) / max(len(completion), 1)}


def session(run, *, epochs, stop_after=None, recipe=Digits, **options):
    loaded, settings = choose(recipe(), {**TINY, **options, "epochs": epochs})
    return run_session(loaded, settings, run, CountingDeadline(stop_after))


class CountingDeadline(Deadline):
    """A deadline that is reached when `updates` durations of updates were observed."""

    def __init__(self, updates):
        super().__init__(None)
        self._updates = updates

    def observe(self, kind, seconds):
        super().observe(kind, seconds)
        if kind == "update" and self._updates is not None:
            self._updates -= 1

    def reached(self):
        return self._updates is not None and self._updates <= 0


def load_adapter(run):
    return safetensors.torch.load_file(run / "light" / "adapter_model.safetensors")


def assert_same_trained_adapters(run, reference):
    actual, expected = load_adapter(run), load_adapter(reference)
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], value) for name, value in expected.items())
    assert any(value.abs().max() > 0 for name, value in expected.items() if "lora_B" in name)


@pytest.mark.slow
def test_resume_in_every_epoch_is_bit_exact(tmp_path):
    outcome = session(tmp_path / "uninterrupted", epochs=2)
    assert (outcome.status, outcome.update) == ("finished", 4 * 2)
    outcomes = [session(tmp_path / "stopped", epochs=2, stop_after=count) for count in (1, 5)]
    # One of the five durations is restored from the preceding session.
    assert [(outcome.status, outcome.update) for outcome in outcomes] == [("paused", 1), ("paused", 5)]
    assert session(tmp_path / "stopped", epochs=2).status == "finished"
    assert_same_trained_adapters(tmp_path / "stopped", tmp_path / "uninterrupted")
    assert read_log(tmp_path / "stopped") == read_log(tmp_path / "uninterrupted")


def read_log(run):
    """Return what TRL has logged, without measured times."""
    state = json.loads((max((run / "checkpoints").glob("update-*")) / "state.json").read_text())
    log = [
        {name: value for name, value in entry.items() if name != "step_time"}
        for entry in state["trainer"]["log_history"]
    ]
    return log, state["trainer"]["num_input_tokens_seen"], state["log"]["numbers"]


def test_resume_over_4_bit_weights_is_bit_exact(tmp_path):
    """The weights and the tokenizer are loaded from a folder in the format of transformers."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    options = Options(size="tiny", weights="fp32")
    torch.manual_seed(0)
    for part in building.build_policy(options, Chart(options).data()["train"]):
        part.save_pretrained(tmp_path / "weights")
    trainers = []

    class RecordingTrainers(Digits):
        def trainer(self, *args, **kwargs):
            trainers.append(super().trainer(*args, **kwargs))
            return trainers[-1]

    settings = {"epochs": 1, "recipe": RecordingTrainers, "weights_from": tmp_path / "weights", "quantization": "nf4"}
    session(tmp_path / "uninterrupted", **settings)
    assert session(tmp_path / "stopped", stop_after=2, **settings).update == 2
    assert session(tmp_path / "stopped", **settings).update == 4
    for trainer in trainers:
        layers = [module for module in trainer.model.modules() if isinstance(module, bitsandbytes.nn.Linear4bit)]
        assert len(layers) > 14 and {layer.weight.quant_type for layer in layers} == {"nf4"}
        assert {value.dtype for value in trainer.model.parameters() if value.requires_grad} == {torch.float32}
    assert_same_trained_adapters(tmp_path / "stopped", tmp_path / "uninterrupted")


@pytest.mark.parametrize("double", [False, True])
def test_scales_of_4_bit_weights_are_in_8_bits_on_request(tmp_path, double):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    options = Options(size="tiny", weights="fp32")
    policy, tokenizer = building.build_policy(options, Chart(options).data()["train"])
    policy.save_pretrained(tmp_path)
    quantized = replace(options, weights_from=tmp_path, quantization="nf4", double_quantization=double)
    layers = [
        layer
        for layer in building.build_base(quantized, tokenizer).modules()
        if isinstance(layer, bitsandbytes.nn.Linear4bit)
    ]
    assert len(layers) > 14 and {layer.weight.quant_state.nested for layer in layers} == {double}


def test_a_saved_dataset_trains_with_images_of_any_shape_and_the_rewards_of_the_guide(tmp_path):
    rows = [make_row(n, image=Image.new("RGB", (20 + 30 * n, 40))) for n in range(3)]
    options = {"data": save_dataset(tmp_path / "data", rows), "keep_aspect": True, "rewards": "guide"}
    options |= {"recipe": Chart, "prompt_len": 900, "completion_len": 3, "effective_batch": 8, "micro_batch": 4}
    outcome = session(tmp_path / "run", epochs=1, **options)
    assert (outcome.status, outcome.update) == ("finished", 2)
    lines = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    metrics = [line["metrics"] for line in lines if line["event"] == "progress"]
    # Without tags the thought and the steps are the whole text: each earns its first step.
    assert [value["rewards/length/mean"] for value in metrics] == [0.25, 0.25]
    assert len([name for name in metrics[0] if name.startswith("rewards/") and name.endswith("/mean")]) == 7


@pytest.mark.slow
def test_completions_are_generated_in_smaller_groups(tmp_path, monkeypatch):
    groups = []
    original = training.generate

    def record_group(model, inputs, **options):
        groups.append(len(inputs["input_ids"]))
        return original(model, inputs, **options)

    monkeypatch.setattr(training, "generate", record_group)
    assert session(tmp_path / "run", epochs=1, written_at_once=3).update == 4
    assert groups == 4 * [3, 3, 3, 3, 3, 1]


@pytest.mark.slow
def test_training_increases_the_reward(tmp_path):
    session(tmp_path / "run", epochs=8)
    lines = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    means = [line["metrics"]["rewards/digits/mean"] for line in lines if line["event"] == "progress"]
    assert sum(means[-6:]) / 6 > sum(means[:6]) / 6 + 0.08


@pytest.mark.slow
def test_evaluation_reports_relaxed_accuracy(tmp_path):
    class WithValidation(Digits):
        def data(self):
            return {**super().data(), "validation": super().data()["train"]}

    outcome = session(tmp_path / "run", epochs=1, recipe=WithValidation)
    assert outcome.metrics == {"validation": {"relaxed_accuracy": 0.0, "answered": 0.0}}


def test_evaluate_reproduces_the_metrics_of_the_run(tmp_path):
    class WithWeightSum(Digits):
        count = 4

        def data(self):
            return {**super().data(), "validation": super().data()["train"]}

        def measured(self, model, charts, polled):
            weights = sum(value.double().sum().item() for value in model.state_dict().values())
            return {**super().measured(model, charts, polled), "weights": weights}

    run, settings = tmp_path / "run", {**TINY, "epochs": 1}
    outcome = session(run, epochs=1, recipe=WithWeightSum)
    planned(run, WithWeightSum(), settings, {})
    newest = max((run / "checkpoints").iterdir())
    for weights in (run, newest):
        assert shoestring.evaluate(weights, recipe=WithWeightSum()).metrics == outcome.metrics


def test_notes_report_synthetic_charts_and_random_weights():
    recipe = Chart(Options(**{name: value for name, value in TINY.items() if name not in ("micro_batch", "precision")}))
    recipe.data()
    data_note, weights_note = recipe.notes()
    assert "not EvoChart" in data_note and "random" in weights_note


@pytest.mark.parametrize(("generations", "charts"), [(2, 8), (4, 9), (8, 7), (16, 3)])
def test_planned_updates_are_those_of_trl(tmp_path, generations, charts):
    recipe = Digits(Options(size="tiny", generations=generations, effective_batch=16))
    recipe.count = charts
    loaded, settings = choose(recipe, {**TINY, "generations": generations})
    loaded.recipe.count = charts
    data = loaded.data()["train"]
    trainer = loaded.recipe.trainer(
        settings, data, lambda trainer_class: trainer_class, folder=tmp_path, device=torch.device("cpu")
    )
    batches = len(trainer.get_train_dataloader())
    assert loaded.updates_per_epoch(len(data)) == max(1, batches // trainer.args.gradient_accumulation_steps)
