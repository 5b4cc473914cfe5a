"""Out of memory in a script's trainer: updates are repeated in smaller microbatches, or the reason why not is given."""

import json
import math
import os
import signal

import pytest
import torch
from datasets import Dataset
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from shoestring.base.errors import RunError
from shoestring.integrations.trainer import surviving
from shoestring.training.monitor.events import read
from tests.integrations.test_trainer import UPDATES, DropoutModel, Sums, make_arguments
from tests.recipes.finetune.tokenizers import make_tokenizer

MESSAGE = "CUDA out of memory. Tried to allocate 1 GiB"


class Memory:
    """Memory for the gradients of `fits` samples; more of them fail in the forward or the backward."""

    is_used = True

    def __init__(self, fits, where="forward", *, after=0):
        """It becomes so small when `after` microbatches are made."""
        self.fits, self.where, self.after = fits, where, after
        self.made = []
        """The samples of each part that was made."""

    def limit(self, model):
        """Let `model` need memory for the samples of its first input."""
        model.register_forward_pre_hook(self._before_forward, with_kwargs=True)
        return model

    def _before_forward(self, model, args, inputs):
        samples = len(next(value for value in inputs.values() if isinstance(value, torch.Tensor)))
        if not torch.is_grad_enabled():
            return
        fails = self.is_used and samples > self.fits and len(self.made) >= self.after
        if fails and self.where == "forward":
            raise torch.OutOfMemoryError(MESSAGE)
        self.made.append(samples)
        if fails:  # when the gradients of the layers above are made, and the first one's is not
            parameter = next(model.parameters())
            handle = parameter.register_hook(lambda _: self._fail(handle))

    def _fail(self, handle):
        handle.remove()
        self.made.pop()
        raise torch.OutOfMemoryError(MESSAGE)


class Regression(nn.Module):
    """The loss is a mean over the samples, a sum by the library's number of items, or a mean over the labels."""

    def __init__(self, kind):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        self.kind = kind
        if kind == "sum":
            self.forward = self.forward_with_items

    def forward(self, x, labels):
        return {"loss": self._errors(x, labels).mean()}

    def forward_with_items(self, x, labels, num_items_in_batch=None, **kwargs):
        errors = self._errors(x, labels)
        return {"loss": errors.mean() if num_items_in_batch is None else errors.sum() / num_items_in_batch}

    def _errors(self, x, labels):
        """Return the error of each sample, or of each label that is not ignored."""
        errors = (self.layers(x) - labels.clamp(min=-9)).square()
        if self.kind == "samples":
            return errors.mean(1)
        if self.kind == "contrastive":
            return torch.cdist(x, self.layers(x) @ torch.ones(3, 8)).softmax(1).diagonal()
        return errors[labels != -100]


class Labelled(torch.utils.data.Dataset):
    """Samples with up to three labels."""

    def __len__(self):
        return 44

    def __getitem__(self, index):
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        labels = x[:3].round()
        labels[index % 4 :] = -100
        return {"x": x, "labels": labels}


class Recorded(TrainerCallback):
    """The gradients and the losses of the updates."""

    def __init__(self):
        self.gradients, self.losses = [], []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.losses += [logs["loss"]] if "loss" in logs else []


def train_regression(run, kind, memory=None):
    arguments = make_arguments(run.parent / "own")
    arguments.per_device_train_batch_size, arguments.logging_steps, arguments.num_train_epochs = 8, 1, 1
    recorded = Recorded()
    with surviving(run) as survive:
        torch.manual_seed(3)
        model = Regression(kind)
        trainer = survive(Trainer)(
            model=memory.limit(model) if memory else model, args=arguments, train_dataset=Labelled(),
            callbacks=[recorded],
        )  # fmt: skip
        trainer.train()
    return recorded


def ooms(run):
    return [(event["update"], event["micro_batch"], event["done"]) for event in read(run / "events.jsonl")
            if event["event"] == "oom"]  # fmt: skip


def newest(run):
    return json.loads((max((run / "checkpoints").glob("update-*")) / "state.json").read_text())


@pytest.mark.parametrize(("where", "after"), [("forward", 0), ("backward", 1)])
@pytest.mark.parametrize("kind", ["samples", "sum", "labels"])
def test_gradients_and_losses_are_those_of_whole_microbatches(tmp_path, kind, where, after, capsys):
    """44 samples in microbatches of 8, two to an update; the last one has 4 samples."""
    whole = train_regression(tmp_path / "whole", kind)
    memory = Memory(3, where, after=after)
    divided = train_regression(tmp_path / "run", kind, memory)
    assert len(whole.gradients) == len(divided.gradients) == 3
    for expected, gradient in zip(whole.gradients, divided.gradients, strict=True):
        assert torch.allclose(gradient, expected, rtol=1e-4, atol=1e-6)
    assert divided.losses == pytest.approx(whole.losses, rel=1e-4)
    assert ooms(tmp_path / "run") == [(0, 8, "microbatch 4"), (0, 4, "microbatch 2")]
    without_labels = 2 if kind == "labels" else 0
    assert memory.made == [8] * after + [2] * (44 // 2 - without_labels)
    assert (newest(tmp_path / "run")["fit"]["micro_batch"], newest(tmp_path / "run")["loss_rules"]) == (2, [kind])
    assert "continuing with microbatch 2; the effective batch is unchanged" in capsys.readouterr().err


class Killed(BaseException):
    """Ends a session without another save."""


def train_dropout(run, memory, *, fails_in=(), act=None, act_at=0):
    """Train with dropout and BatchNorm. `memory` is used from update and microbatch `fails_in` on; `act` is called in
    the `act_at`th part of the session.
    """
    count = 0

    class ActingTrainer(Trainer):
        def training_step(self, *args, **kwargs):
            nonlocal count
            count += 1
            if count == act_at:
                act()
            return super().training_step(*args, **kwargs)

        def get_batch_samples(self, *args, **kwargs):
            fetched = super().get_batch_samples(*args, **kwargs)
            memory.is_used, self.microbatches = False, [id(batch["x"]) for batch in fetched[0]]
            return fetched

        def compute_loss(self, model, inputs, *args, **kwargs):
            number = self.microbatches.index(id(inputs["x"])) if id(inputs["x"]) in self.microbatches else 0
            memory.is_used = memory.is_used or (self.state.global_step, number) >= fails_in
            return super().compute_loss(model, inputs, *args, **kwargs)

    with surviving(run, save_every_seconds=0.0, exit_when_paused=False) as survive:
        torch.manual_seed(3)
        trainer = survive(ActingTrainer)(
            model=memory.limit(DropoutModel()), args=make_arguments(run.parent / "own"), train_dataset=Sums()
        )
        trainer.train()
        return survive.ended, trainer.model.state_dict()


def kill():
    raise Killed


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def test_weights_do_not_depend_on_where_the_memory_ran_out_nor_on_interruptions(tmp_path, capsys):
    """The update is repeated from its start, so the second of its microbatches fails like the first."""
    first, second = ((3, 0), "forward"), ((3, 1), "backward")
    weights, logs = [], []
    for number, (fails_in, where) in enumerate((first, second)):
        run = tmp_path / f"run-{number}"
        _, final = train_dropout(run, Memory(2, where), fails_in=fails_in)
        assert ooms(run) == [(3, 4, "microbatch 2")]
        weights.append(final)
        logs.append([entry["loss"] for entry in newest(run)["trainer"]["log_history"]])
    assert logs[0] == pytest.approx(logs[1], rel=1e-5)
    assert capsys.readouterr().err.count("BatchNorm computes its statistics over each microbatch") == 2
    run = tmp_path / "interrupted"
    with pytest.raises(Killed):
        train_dropout(run, Memory(2), fails_in=(3, 1), act=kill, act_at=10)  # within that update, while it is repeated
    assert ooms(run) == [(3, 4, "microbatch 2")]
    ended, _ = train_dropout(run, Memory(2, "backward"), fails_in=(3, 1), act=terminate, act_at=14)
    assert ended == "SIGTERM" and newest(run)["fit"]["micro_batch"] == 2
    for act_at in (9, 5):
        with pytest.raises(Killed):  # memory for 2 samples is enough from the start on
            train_dropout(run, Memory(2), act=kill, act_at=act_at)
    _, final = train_dropout(run, Memory(2))
    assert len(ooms(run)) == 2 and newest(run)["trainer"]["global_step"] == UPDATES
    for other in (*weights[1:], final):
        assert all(torch.equal(value, other[name]) for name, value in weights[0].items())


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    """The folder of a tiny model with its tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = make_tokenizer(pad="<|endoftext|>")
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(3)
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    return str(folder)


ARGUMENTS = {
    "max_steps": 2, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_length": 32,
    "learning_rate": 1e-2, "use_cpu": True, "report_to": [], "save_strategy": "no", "bf16": False, "logging_steps": 1,
}  # fmt: skip
TEXTS = [f"Two plus two is {'not ' * (number % 5)}{number}." for number in range(16)]


GENERATION = {"num_generations": 2, "max_completion_length": 4, "beta": 0.0}


def train_trl(kind, run, model, memory=None, **options):
    recorded = Recorded()
    if kind == "sft":
        trainer_class, arguments = SFTTrainer, SFTConfig(output_dir=str(run.parent / "own"), **(ARGUMENTS | options))
        rows = [{"text": text} for text in TEXTS]
    elif kind == "grpo":
        options = ARGUMENTS | options | GENERATION
        del options["max_length"]
        trainer_class, arguments = GRPOTrainer, GRPOConfig(output_dir=str(run.parent / "own"), **options)
        rows = [{"prompt": text} for text in TEXTS]
    else:
        trainer_class, arguments = DPOTrainer, DPOConfig(output_dir=str(run.parent / "own"), **(ARGUMENTS | options))
        rows = [{"prompt": "Two", "chosen": text, "rejected": text[::-1]} for text in TEXTS]
    with surviving(run) as survive:
        trainer = survive(trainer_class)(
            model=LlamaForCausalLM.from_pretrained(model), args=arguments, train_dataset=Dataset.from_list(rows),
            processing_class=make_tokenizer(pad="<|endoftext|>"), callbacks=[recorded],
            **({"reward_funcs": lambda completions, **_: [0.0] * len(completions)} if kind == "grpo" else {}),
        )  # fmt: skip
        if memory:
            memory.limit(trainer.model)
        trainer.train()
    recorded.logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    return recorded


@pytest.mark.filterwarnings(r"ignore:.*gradient_checkpointing\w*` is deprecated")
@pytest.mark.parametrize(("kind", "fits", "rules"), [("sft", 2, ["sum"]), ("dpo", 4, ["samples", "labels"])])
def test_trainers_of_trl(tmp_path, language_model, kind, fits, rules):
    """A sample of DPO is a pair, of which the model computes both."""
    whole = train_trl(kind, tmp_path / "whole", language_model)
    memory = Memory(fits, "backward")
    divided = train_trl(kind, tmp_path / "run", language_model, memory)
    for expected, gradient in zip(whole.gradients, divided.gradients, strict=True):
        assert torch.allclose(gradient, expected, rtol=1e-3, atol=1e-5)
    assert ooms(tmp_path / "run") == [(0, 4, "microbatch 2")]
    assert memory.made == [fits] * 8
    assert newest(tmp_path / "run")["loss_rules"][: len(rules)] == rules
    for expected, log in zip(whole.logs, divided.logs, strict=True):
        for name in ("loss", "grad_norm", "num_tokens", "mean_token_accuracy"):
            assert math.isclose(log[name], expected[name], rel_tol=0.1 if name.startswith("mean") else 1e-3), name


@pytest.mark.filterwarnings(r"ignore:.*gradient_checkpointing\w*` is deprecated")
def test_what_cannot_be_divided_ends_with_the_reason(tmp_path, language_model):
    cases = {
        "which samples share a microbatch": lambda run: train_regression(run, "contrastive", Memory(4)),
        "generated for several microbatches": lambda run: train_trl("grpo", run, language_model, Memory(0)),
        "joined to one row": lambda run: train_trl(
            "sft", run, language_model, Memory(0), padding_free=True, max_length=None
        ),
    }
    for number, (reason, act) in enumerate(cases.items()):
        run = tmp_path / f"run-{number}"
        with pytest.raises(RunError, match=r"^out of memory with microbatches of .: CUDA") as error:
            act(run)
        assert reason in error.value.problems[0]
        assert "halve per_device_train_batch_size" in error.value.hint
        state = json.loads((run / "state.json").read_text())
        assert state["status"] == "failed" and "out of memory" in state["reason"] and not ooms(run)
        assert [path.name for path in (run / "checkpoints").glob("update-*")] == ["update-00000000"]


def test_nothing_is_left_to_try(tmp_path):
    with pytest.raises(RunError, match="with the smallest microbatch: CUDA out of memory") as error:
        train_regression(tmp_path / "run", "samples", Memory(0))
    assert error.value.hint.startswith("set gradient_checkpointing=True; or ")
    assert [done for *_, done in ooms(tmp_path / "run")] == ["microbatch 4", "microbatch 2", "microbatch 1"]
