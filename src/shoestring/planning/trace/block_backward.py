"""The backward of a block: recorded if the block runs, and repeated from the record if it is folded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from shoestring.planning.trace import templates
from shoestring.planning.trace.block_state import Call, Gradients, Pass
from shoestring.planning.trace.event_log import EventLog
from shoestring.planning.trace.templates import Form, NotRepeatableError, Released, Role, Template
from shoestring.techniques import trees

_INPUT: Role = ("input",)
_GRADIENT: Role = ("gradient",)


class Backward:
    """The backward of the blocks of a group, whose `parameters` each block has."""

    def __init__(self, log: EventLog, parameters: list[list[nn.Parameter]]) -> None:
        self.problem: NotRepeatableError | None = None
        """What went wrong. It is raised outside of backward, where an exception may abort the process."""
        self._log, self._parameters = log, parameters

    def fold(self, current: Pass, call: Call, source: Tensor, results: list[Tensor]) -> Tensor:
        """Return the only tensor in `results`, of a folded block, with a backward that repeats that of the last block.

        The list is emptied: nobody else may hold the tensor.
        """
        source.register_hook(self._hook(lambda gradient: self._check_gradient(call, gradient)))
        apply: Any = _FoldedBlock.apply
        folded: Tensor = apply(source, results, lambda gradient: self._backward(current, call, gradient))
        return folded

    def watch(self, current: Pass, call: Call, source: Tensor, result: Any) -> None:
        """Have the template made, or compared, of a block that runs."""
        output = next(leaf for leaf in trees.leaves(result) if isinstance(leaf, Tensor))
        output_number = output.output_nr
        call.is_complete = not output.requires_grad
        if output.requires_grad:
            assert output.grad_fn is not None
            # It runs after the hooks of the result, such as those that gather divided weights.
            output.grad_fn.register_prehook(lambda gradients: self._begin_backward(call, gradients[output_number]))
            source.register_hook(self._hook(lambda gradient: self._finish_backward(current, call, gradient)))

    def _hook(self, work: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        """Return a hook of a tensor that raises nothing: an exception in backward may abort the process."""

        def hook(gradient: Tensor) -> None:
            try:
                if self.problem is None:
                    work(gradient)
            except Exception as error:  # noqa: BLE001 - any exception here may abort the process
                self.problem = NotRepeatableError(str(error))

        return hook

    def _backward(self, current: Pass, call: Call, gradient: Tensor | None) -> Tensor | None:
        """Return the gradient of a folded block's input: after a problem, which `check_complete` raises, any tensor."""
        if self.problem is None:
            try:
                return self._fold_backward(current, call, gradient)
            except Exception as error:  # noqa: BLE001 - any exception here may abort the process
                self.problem = NotRepeatableError(str(error))
        # Without a gradient, operators of other blocks may abort the process.
        return templates.new_tensor(current.input_form[0], gradient) if isinstance(gradient, FakeTensor) else None

    def _begin_backward(self, call: Call, gradient: Tensor) -> None:
        """Run when the gradient of the block's result is complete."""
        call.start = self._log.position()
        call.incoming = self._log.storage_index(gradient), templates.form(gradient)
        call.old_gradients = self._gradient_storages(call)

    def _gradient_storages(self, call: Call) -> list[int | None]:
        return [self._log.storage_index(parameter.grad) for parameter in self._parameters[call.index]]

    def _finish_backward(self, current: Pass, call: Call, gradient: Tensor) -> None:
        """Run when the gradient of the block's input is complete."""
        if not current.can_fold or call.is_complete:
            return
        if call.start is None or call.incoming is None:
            raise NotRepeatableError("the result of a block has no gradient")
        template = templates.make(self._log, call.start, self._roles(current, call))
        gradients = self._gradients(call, gradient, template)
        if call.index > 1:
            current.backward, current.gradients = template, gradients
        elif (template, gradients) != (current.backward, current.gradients):
            raise NotRepeatableError("the backward of the second block has other events")
        call.is_complete = True

    def _roles(self, current: Pass, call: Call) -> dict[int, Role]:
        """Return the roles of the storages that the backward of a block may free."""
        assert call.incoming is not None
        candidates: list[tuple[int | None, Role]] = [(call.input_index, _INPUT), (call.incoming[0], _GRADIENT)]
        candidates += [(storage, ("parameter", number)) for number, storage in enumerate(call.old_gradients)]
        for number, other in enumerate(current.microbatch):
            storages = other.calls[call.index].storages if len(other.calls) > call.index else range(0)
            candidates += [(storage, ("forward", number, storage - storages.start)) for storage in storages]
        return {storage: role for storage, role in candidates if storage is not None}

    def _gradients(self, call: Call, gradient: Tensor, template: Template) -> Gradients:
        """Return which of the new storages are gradients. Raises NotRepeatableError if others remain."""
        assert call.start is not None and call.incoming is not None
        first = call.start.storages
        parameters: list[tuple[int, Form] | None] = []
        for parameter, old in zip(self._parameters[call.index], call.old_gradients, strict=True):
            grad, storage = parameter.grad, self._log.storage_index(parameter.grad)
            if grad is None or storage is None or storage == old:
                parameters.append(None)
            else:
                parameters.append((storage - first, templates.form(grad)))
        storage = self._log.storage_index(gradient)
        source = None if storage is None else (storage - first, templates.form(gradient))
        is_incoming = (storage, templates.form(gradient)) == call.incoming
        if source is None or not (is_incoming or Released(_GRADIENT) in template.steps):
            raise NotRepeatableError("the gradient of a block is not freed")
        new = [entry[0] for entry in (*parameters, None if is_incoming else source) if entry is not None]
        if len(set(new)) < len(new) or set(new) != template.survivors:
            raise NotRepeatableError("storages of backward are not freed")
        is_none = [old is None for old in call.old_gradients]
        return Gradients(call.incoming[1], None if is_incoming else source, parameters, is_none)

    def _fold_backward(self, current: Pass, call: Call, gradient: Tensor | None) -> Tensor:
        """Record the events of the last block's backward for a folded one, and return the gradient of its input."""
        template, gradients = current.backward, current.gradients
        if template is None or gradients is None or not isinstance(gradient, FakeTensor):
            raise NotRepeatableError("the last block has no backward")
        is_none = [storage is None for storage in self._gradient_storages(call)]
        if templates.form(gradient) != gradients.incoming or is_none != gradients.are_none:
            raise NotRepeatableError("the gradient of a block has another form")
        parameters = self._parameters[call.index]
        tensors = {_INPUT: call.input, _GRADIENT: gradient}

        def free(step: Released) -> None:
            match step.role:
                case "forward", int(number), int(offset):
                    self._log.free_untracked(current.microbatch[number].calls[call.index].storages[offset])
                case "parameter", int(number):
                    self._release(parameters[number].grad)
                case role:
                    self._release(tensors[role])

        try:
            first = templates.repeat(self._log, template, [None] * len(template.sizes), free)
        except KeyError as error:
            raise NotRepeatableError("a storage of a block is not allocated") from error
        tensors.clear()
        for parameter, new in zip(parameters, gradients.parameters, strict=True):
            if new is not None:
                parameter.grad = self._bound(first + new[0], new[1], gradient)
        end = self._log.position()
        call.input = None
        if self._log.position() != end:
            raise NotRepeatableError("the input of a block is freed elsewhere")
        call.is_complete = True
        source = (
            gradient
            if gradients.input is None
            else self._bound(first + gradients.input[0], gradients.input[1], gradient)
        )
        call.returned = self._log.storage_index(source)
        return source

    def _release(self, tensor: Tensor | None) -> None:
        if tensor is None or self._log.storage_index(tensor) is None:
            raise NotRepeatableError("a storage of a block is not allocated")
        self._log.release(tensor)

    def _bound(self, index: int, form: Form, gradient: FakeTensor) -> Tensor:
        tensor = templates.new_tensor(form, gradient)
        self._log.bind(tensor, index)
        return tensor

    def _check_gradient(self, call: Call, gradient: Tensor) -> None:
        """Refuse an input that other modules use too: its gradient would be summed in another place."""
        if self._log.storage_index(gradient) != call.returned:
            raise NotRepeatableError("the input of a block is used elsewhere")


class _FoldedBlock(torch.autograd.Function):
    """A folded block, with the only tensor in `results` as the result."""

    library_calls = (0, 0)  # those of the block are repeated with its events

    @staticmethod
    def forward(ctx: Any, _source: Tensor, results: list[Tensor], run_backward: Callable[..., Tensor | None]) -> Tensor:
        ctx.run_backward = run_backward
        ctx.set_materialize_grads(False)
        return results.pop()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, None, None]:
        return ctx.run_backward(*gradients), None, None
