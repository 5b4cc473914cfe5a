"""Test recipes whose updates are made by transformers' Trainer instead of the engine."""

from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import default_collate
from transformers import Trainer, TrainingArguments

from shoestring.recipe.contract import build_optimizer

KINDS = ("engine", "trainer")
"""The kinds of updates that a test can request."""


class ByTrainer:
    """`recipe` with an additional method `trainer`."""

    def __init__(self, recipe):
        self._recipe = recipe

    def __getattr__(self, name):
        if name == "_recipe":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self._recipe, name)

    def measured(self, model, samples, polled, size=8):
        """Evaluate as the engine does for this recipe."""
        batches = (default_collate([samples[i] for i in range(start, min(start + size, len(samples)))])
                   for start in range(0, len(samples), size))  # fmt: skip
        sized_batches = ((batch, len(batch[0])) for batch in batches)
        if recipe_evaluate := getattr(self._recipe, "evaluate", None):
            return recipe_evaluate(model, (batch for batch, _ in polled(sized_batches, len(samples))))
        losses = [(float(self.loss(model, batch)), count) for batch, count in polled(sized_batches, len(samples))]
        return {"loss": sum(loss * count for loss, count in losses) / len(samples)}

    def trainer(self, settings, data, surviving, *, folder, device):
        recipe = self._recipe
        arguments = TrainingArguments(
            output_dir=str(folder), per_device_train_batch_size=settings.micro_batch,
            gradient_accumulation_steps=-(-recipe.effective_batch // settings.micro_batch),
            num_train_epochs=recipe.epochs, max_grad_norm=getattr(recipe, "clip_norm", None) or 0.0, seed=7,
            report_to=[], logging_steps=1, use_cpu=True, save_strategy="no",
            remove_unused_columns=False,
        )  # fmt: skip
        model = recipe.model()
        optimizer = build_optimizer(recipe, model)
        updates_per_epoch = -(-len(data) // recipe.effective_batch)
        schedule = getattr(recipe, "schedule", None) or (lambda *_: 1.0)

        class Losses(Trainer):
            def compute_loss(self, model, inputs, *_, **__):
                return recipe.loss(model, inputs["batch"])

        return surviving(Losses)(
            model=model,
            args=arguments,
            train_dataset=data,
            data_collator=lambda samples: {"batch": default_collate(samples)},
            optimizers=(
                optimizer,
                LambdaLR(
                    optimizer, lambda update: schedule(update, updates_per_epoch, updates_per_epoch * recipe.epochs)
                ),
            ),
        )
