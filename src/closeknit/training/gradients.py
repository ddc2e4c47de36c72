"""Gradients: of the loss of a batch, and of several tasks combined into one."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from closeknit.acceleration.engine import Engine
from closeknit.acceleration.precision import Precision
from closeknit.encoders.augmentation import second_copies_changed
from closeknit.encoders.encoder import Encoder
from closeknit.encoders.views import read_views, tokens_in_view
from closeknit.errors import TrainingError
from closeknit.objectives.joint import Joint, Term
from closeknit.objectives.losses.cross_entropy import CrossEntropy
from closeknit.objectives.view import View
from closeknit.training.failures import is_out_of_memory, memory_advice
from closeknit.training.optimizer import StepValues
from closeknit.training.processes import World, average, gather
from closeknit.training.randomness import DropoutSeeds, fixed_seed
from closeknit.training.task import Batch, Task

_PIECE = 2**20  # columns of half-precision gradients that are widened at once
HELD_BYTES = 2**29  # gradients of tasks that are only compared are held up to this size together


def pcgrad(
    gradients: Tensor, generator: torch.Generator | None = None, *, reduction: str = "sum"
) -> Tensor:
    """The sum (P,) of task gradients (T, P), after each is projected off the gradients it
    contradicts (Yu et al., NeurIPS 2020); with reduction "mean" their mean.

        g_i' = g_i
        for the other tasks j in random order:  if <g_i', g_j> < 0:
            g_i' -= <g_i', g_j> / <g_j, g_j> g_j
        result = sum_i g_i'    (or 1 / T sum_i g_i')

    The g_j are the original gradients. Every g_i' is a combination of them, so that their products
    decide everything: the projections are computed on T x T numbers, and one product with the
    gradients gives the result. No second copy of the gradients is made. `generator`, a CPU one,
    decides the order.

    [1, 0] and [-1, 1] give [0.5, 1.5].
    """
    if reduction not in ("sum", "mean"):
        raise ValueError(f'reduction is {reduction}; it must be "sum" or "mean"')
    if gradients.dim() != 2:
        raise ValueError(
            f"expected the tasks' gradients as rows, (T, P); got {tuple(gradients.shape)}"
        )
    if not gradients.is_floating_point():
        raise ValueError(f"expected gradients of a floating type; got {gradients.dtype}")
    tasks = len(gradients)
    products = products_of(gradients).double().cpu()  # (T, T)
    mixed = torch.eye(tasks, dtype=torch.float64)  # row i: how g_i' is made of all g
    for i in range(tasks):
        for j in torch.randperm(tasks, generator=generator).tolist():
            along = mixed[i] @ products[j]  # <g_i', g_j>
            if (
                j != i and bool(along < 0) and bool(products[j, j] > 0)
            ):  # a tiny square may have become 0
                mixed[i, j] -= along / products[j, j]
    coefficients = mixed.sum(0) if reduction == "sum" else mixed.mean(0)
    combined: Tensor = coefficients.to(gradients) @ gradients
    return combined


def products_of(gradients: Tensor) -> Tensor:
    """The products <g_i, g_j> (T, T), in the gradients' precision; for half precision in
    float32.
    """
    if gradients.element_size() > 2:
        return gradients @ gradients.T
    products = gradients.new_zeros(len(gradients), len(gradients), dtype=torch.float32)
    for piece in gradients.split(_PIECE, dim=1):  # float16 overflows at the square of some hundreds
        products += piece.float() @ piece.float().T
    return products


def cosines(gradients: Tensor) -> Tensor:
    """The cosines (T, T) between the gradients (T, P) of tasks; 0 for a gradient that is zero."""
    return cosines_of_products(products_of(gradients).double())


def cosines_of_products(products: Tensor) -> Tensor:
    """The cosines (T, T) between gradients whose products are (T, T)."""
    lengths = products.diagonal().sqrt()  # (T,)
    agreement = products / (lengths[:, None] * lengths[None, :])
    return torch.where((lengths[:, None] > 0) & (lengths[None, :] > 0), agreement, 0.0).clamp(
        -1.0, 1.0
    )


def tasks_held_at_once(parameters: Sequence[nn.Parameter], tasks: int) -> int:
    """The gradients of how many of the tasks fit into `HELD_BYTES`; at least one."""
    each = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    return max(1, min(tasks, HELD_BYTES // max(1, each)))


class SeparateGradients:
    """The gradients of the tasks of one update, a row (P,) for each task: all memory that keeping
    them separate costs.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], tasks: int) -> None:
        self.parameters = list(parameters)
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.used = [False] * len(
            self.parameters
        )  # whether any task has a gradient for a parameter
        first = self.parameters[0]
        self.rows = torch.zeros(tasks, sum(self.sizes), dtype=first.dtype, device=first.device)

    def take(self, task: int) -> None:
        """Move the gradients that the parameters have now into a task's row."""
        pieces = self.rows[task].split(self.sizes)
        for number, (piece, parameter) in enumerate(zip(pieces, self.parameters, strict=True)):
            if parameter.grad is None:
                piece.zero_()
            else:
                piece.copy_(parameter.grad.flatten())
                self.used[number] = True
            parameter.grad = None

    def products_with_present(self) -> Tensor:
        """The product (T,) of each row with the gradients that the parameters have now."""
        total = torch.zeros(len(self.rows), dtype=torch.float64, device=self.rows.device)
        pieces = self.rows.split(self.sizes, dim=1)
        for piece, parameter in zip(pieces, self.parameters, strict=True):
            if parameter.grad is not None:
                present = parameter.grad.flatten()
                if present.element_size() <= 2:  # float16 overflows at the square of some hundreds
                    piece, present = piece.float(), present.float()
                total += (piece @ present).double()
        return total

    def give_back(self, combined: Tensor) -> None:
        """Let these (P,) be the gradients of the parameters.

        A parameter that no task uses gets none, so that it does not decay either.
        """
        pieces = combined.split(self.sizes)
        for piece, parameter, used in zip(pieces, self.parameters, self.used, strict=True):
            parameter.grad = piece.view_as(parameter) if used else None


Loss = tuple[Tensor, dict[str, Tensor]]  # the loss, and its terms by name
Shares = dict[str, float | Tensor]  # how much a part of a batch counts for each term


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
        self,
        task: Task,
        parts: Sequence[Batch],
        seeds: DropoutSeeds,
        *,
        weight: float,
        only_batch: bool,
    ) -> Loss:
        """The loss of a task's batch that comes in parts, and its gradients, both times `weight`.

        `only_batch` says that nothing else adds to the gradients of this update.
        """
        numbered = [(part, piece) for part, piece in enumerate(parts) if len(piece.rows)]
        pieces = [piece.to(self.world.device) for _, piece in numbered]
        shares_of_pieces = self.shares_of_parts(task, pieces)
        total = torch.zeros((), device=self.world.device)
        term_values: dict[str, Tensor] = {}
        for (part, _), batch, shares in zip(numbered, pieces, shares_of_pieces, strict=True):
            part_seeds = dataclasses.replace(seeds, part=part)
            try:
                loss, terms = self.of_batch(task, batch, weight, part_seeds, shares)
            except (torch.cuda.OutOfMemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                raise TrainingError(memory_advice(batch, self.chunk_size, len(parts))) from error
            self.engine.collect_gradients(only_batch=only_batch)
            total += weight * loss.detach()
            for name, value in terms.items():
                term_values[name] = term_values.get(name, 0.0) + value.detach()
        return total, term_values

    def shares_of_parts(self, task: Task, parts: Sequence[Batch]) -> Sequence[Shares | None]:
        """How much each part of a batch counts for each term of the objective.

        A term that is a mean over rows counts a part by its number of rows, a mean over tokens by
        its number of tokens, and a mean that is weighted by class by the sum of these weights. So
        the parts add up to the loss of the whole batch. None is a batch in one part.
        """
        if len(parts) == 1:
            return [None]
        rows = [float(len(part.rows)) for part in parts]
        shares: list[Shares] = [{} for _ in parts]
        for term in task.objective.terms:
            masses = [self._mass(task.objective, term, part) for part in parts]
            exact = [mass for mass in masses if mass is not None]
            if not exact:
                for share, amount in zip(shares, rows, strict=True):
                    share[term.name] = amount / sum(rows)
                continue
            # Some devices have no float64.
            precise = torch.float32 if self.world.device.type == "mps" else torch.float64
            whole = torch.stack(exact).to(precise)  # (parts,)
            average(whole, self.world)
            total = whole.sum()  # ()
            fractions = whole / torch.where(total > 0, total, 1.0)  # (parts,)
            for share, fraction in zip(shares, fractions, strict=True):
                share[term.name] = fraction
        return shares

    def _mass(self, objective: Joint, term: Term, part: Batch) -> Tensor | None:
        """What this process's share of a part counts for a term; None: by its number of rows."""
        mass: Tensor | None = None
        if isinstance(term.objective, CrossEntropy):
            mass = term.objective.mass(objective.copies_for(term, part.labels))
        if mass is None:
            part_of_whole = self.world.size > 1
            mass = tokens_in_view(part.inputs, part.labels, term.view, part=part_of_whole)
        return mass * 0 if mass is not None and part.filler else mass

    def of_batch(
        self,
        task: Task,
        batch: Batch,
        weight: float,
        seeds: DropoutSeeds,
        shares: Shares | None = None,
    ) -> Loss:
        """The loss of a batch, and its gradients times the weight.

        Of a part of a batch, `shares` says how much it counts for each term.
        """
        if 0 < self.chunk_size < len(batch.labels):
            return self._of_chunks(task, batch, weight, seeds, shares)
        views = self.views(task, batch, seeds)
        loss, terms = self._objective(task, views, batch.filler, shares, seeds)
        self.precision.scale(loss * weight).backward()
        return loss, terms

    def _of_chunks(
        self, task: Task, batch: Batch, weight: float, seeds: DropoutSeeds, shares: Shares | None
    ) -> Loss:
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
        loss, terms = self._objective(task, whole, batch.filler, shares, seeds)
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
        self, task: Task, batch: Batch, seeds: DropoutSeeds, chunk: int | None = None
    ) -> dict[str, View]:
        """What the objective reads of a batch.

        A chunk of a batch has its own dropout, the same every time.
        """
        if chunk is None:
            dropout: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        else:
            seed = seeds.of_chunk(chunk)
            dropout = fixed_seed(self.world, seed)
            self.engine.begin_chunk(seed)
        with dropout, self.precision.autocast():
            self.engine.reads(self.encoder, task.objective.views)
            with self._second_copies(task, batch):
                encoded = self.encoder(batch.inputs)
            return read_views(
                batch.inputs,
                encoded,
                batch.labels,
                task.heads,
                task.objective.views,
                gaps=self.keep_unchosen_tokens,
                part=chunk is not None or self.world.size > 1,
            )

    def _second_copies(self, task: Task, batch: Batch) -> contextlib.AbstractContextManager[None]:
        """Inside, the encoder reads the second copies of texts as the objective says."""
        objective = task.objective
        if not objective.second_copies.changes_encoding:
            return contextlib.nullcontext()
        return second_copies_changed(
            self.encoder,
            dict(task.heads.items()),
            objective.second_copies,
            batch.inputs,
            batch.is_second_copy,
            reads_logits="logits" in objective.views,
        )

    def _objective(
        self,
        task: Task,
        views: Mapping[str, View],
        filler: bool,
        shares: Shares | None,
        seeds: DropoutSeeds,
    ) -> Loss:
        """The objective of the views of all processes."""
        copies = task.objective.copies
        gathered = {
            name: gather(view, self.world, filler, 1 if name.endswith("tokens") else copies)
            for name, view in views.items()
        }
        seed = seeds.of_token_rows if task.objective.draws_rows else 0
        loss, terms = task.objective(gathered, self.step_values.progress, shares, seed)
        return loss, terms
