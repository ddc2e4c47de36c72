"""The loss of a batch and its gradients: of the batch as a whole, in parts, or in chunks with
cached gradients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from closeknit.encoder import Encoder
from closeknit.encoder_views import read_views
from closeknit.engine import Engine
from closeknit.errors import TrainingError
from closeknit.failures import is_out_of_memory, memory_advice
from closeknit.objectives.view import View
from closeknit.precision import Precision
from closeknit.processes import World, gather, mix, seeded
from closeknit.rates import StepValues
from closeknit.tasks import Batch, Task

Seeds = tuple[int, ...]  # numbers that dropout's seed is mixed from
Loss = tuple[Tensor, dict[str, Tensor]]  # the loss, and its terms by name


class BatchGradients:
    """Computes losses, and adds their gradients to those of the parameters.

    With a `chunk_size`, batches that are larger are encoded in chunks of that many rows, with the
    gradients of the whole batch. With `keep_unchosen_tokens`, views of tokens have a row for every
    token of the batch, so that their shape does not depend on the texts; rows that are not chosen
    have the label -1.
    """

    def __init__(
        self,
        encoder: Encoder,
        engine: Engine,
        precision: Precision,
        world: World,
        step_values: StepValues,
        *,
        chunk_size: int,
        keep_unchosen_tokens: bool,
    ) -> None:
        self.encoder = encoder
        self.engine = engine
        self.precision = precision
        self.world = world
        self.step_values = step_values
        self.chunk_size = chunk_size
        self.keep_unchosen_tokens = keep_unchosen_tokens

    def of_task(
        self, task: Task, parts: Sequence[Batch], seeds: Seeds, *, only_batch: bool
    ) -> Loss:
        """The loss of a task's batch that comes in parts, and its gradients, weighted by the task's
        weight.

        `only_batch` says that nothing else adds to the gradients of this update.
        """
        pieces = [piece for piece in parts if len(piece.rows)]
        rows = sum(len(piece.rows) for piece in pieces)
        total = torch.zeros((), device=self.world.device)
        term_values: dict[str, Tensor] = {}
        for batch in pieces:
            share = len(batch.rows) / rows
            try:
                loss, terms = self.of_batch(
                    task, batch.to(self.world.device), task.weight * share, seeds
                )
            except (torch.cuda.OutOfMemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                raise TrainingError(memory_advice(batch, len(parts))) from error
            self.engine.collect_gradients(only_batch=only_batch)
            total += task.weight * share * loss.detach()
            for name, value in terms.items():
                term_values[name] = term_values.get(name, 0.0) + share * value.detach()
        return total, term_values

    def of_batch(self, task: Task, batch: Batch, weight: float, seeds: Seeds) -> Loss:
        """The loss of a batch, and its gradients times the weight."""
        if 0 < self.chunk_size < len(batch.labels):
            return self._of_chunks(task, batch, weight, seeds)
        loss, terms = self._objective(task, self.views(task, batch, seeds), batch.filler)
        self.precision.scale(loss * weight).backward()
        return loss, terms

    def _of_chunks(self, task: Task, batch: Batch, weight: float, seeds: Seeds) -> Loss:
        """Gradient caching, so that only one chunk's activations are in memory at a time.

        First all views are computed without gradients. The objective gives its gradients with
        respect to them. Then each chunk is computed again, with the same dropout, and its gradients
        flow on into the encoder.
        """
        reads_padding = "all_tokens" in task.objective.views
        chunks = batch.chunks(self.chunk_size, same_width=reads_padding)
        with torch.no_grad():
            parts = [self.views(task, chunk, seeds, number) for number, chunk in enumerate(chunks)]
        whole: dict[str, View] = {}
        for name in task.objective.views:
            z = torch.cat([part[name].z for part in parts])
            y = torch.cat([part[name].y for part in parts])
            whole[name] = View(z.requires_grad_(), y)
        loss, terms = self._objective(task, whole, batch.filler)
        self.precision.scale(loss * weight).backward()
        sizes = {name: [len(part[name].z) for part in parts] for name in whole}
        del parts
        gradients = {
            name: view.z.grad.split(sizes[name])
            for name, view in whole.items()
            if view.z.grad is not None
        }
        for number, chunk in enumerate(chunks):
            views = self.views(task, chunk, seeds, number)
            learning = [name for name in gradients if views[name].z.requires_grad]
            torch.autograd.backward(
                [views[name].z for name in learning], [gradients[name][number] for name in learning]
            )
        return loss, terms

    def views(
        self, task: Task, batch: Batch, seeds: Seeds, chunk: int | None = None
    ) -> dict[str, View]:
        """What the objective reads of a batch.

        A chunk of a batch has its own dropout, the same every time.
        """
        if chunk is None:
            dropout: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        else:
            dropout = seeded(self.world, *seeds, chunk)
            self.engine.begin_chunk(mix(*seeds, chunk))
        with dropout, self.precision.autocast():
            self.engine.reads(self.encoder, task.objective.views)
            encoded = self.encoder(batch.inputs)
            return read_views(
                batch.inputs,
                encoded,
                batch.labels,
                task.heads,
                task.objective.views,
                gaps=self.keep_unchosen_tokens,
                chunk=chunk is not None,
            )

    def _objective(self, task: Task, views: Mapping[str, View], filler: bool) -> Loss:
        """The objective of the views of all processes."""
        copies = task.objective.copies
        gathered = {
            name: gather(view, self.world, filler, 1 if name.endswith("tokens") else copies)
            for name, view in views.items()
        }
        loss, terms = task.objective(gathered, self.step_values.progress)
        return loss, terms
