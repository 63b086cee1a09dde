"""Training one row, from any step on."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import spectral_param as sp
from examples.papers import networks, optimizers, tasks
from examples.papers.config import Row
from examples.papers.measures import HIGHER_IS_BETTER
from examples.papers.parallel import Processes

# A loss counts as divergence when it is so many times that of the first step, and that of guessing.
DIVERGED = 1e3
# Of so many last steps the median time is reported.
TIMED_STEPS = 200


class DivergedError(Exception):
    """A loss, a gradient or a weight is not finite, or the loss is far beyond that of guessing."""


class Trainer:
    """A network, how far it has come, and what was measured on the way.

    Everything that a step depends on is in :meth:`state`, so training can be left after any step and gone
    on with in another process, to the same bits.

    Args:
        row: What to train.
        seed: Seed of initial weights, generated data and order.
        processes: This process and those beside it.
        dtype: Real dtype.
    """

    def __init__(self, row: Row, seed: int, processes: Processes, dtype: torch.dtype) -> None:
        self.processes, self.dtype = processes, dtype
        self.task = tasks.build(row.task, seed)
        self.model = networks.build(row.network, self.task, seed, dtype).to(processes.device)
        self.optimizers = optimizers.build(self.model, row.optimizer)
        torch.manual_seed(seed)  # For dropout. All else that is random has generators of its own.
        training = row.training
        self.steps: int = training.get("steps") or round(training["epochs"] * self.task.steps_per_epoch)
        self._every: int = training.get("evaluate_every", self.task.steps_per_epoch)
        self._clip_norm: float = training.get("clip_norm", math.inf)
        self._clip_value: float | None = training.get("clip_value")
        self._splits: tuple[str, ...] = tuple(training.get("measured", self.task.splits))
        if not self._splits or not set(self._splits) <= set(self.task.splits):
            expected = ", ".join(self.task.splits)
            raise ValueError(f"training: measured: expected some of {expected}; got {list(self._splits)}")
        self._schedule: dict[str, Any] = training.get("schedule", {})
        optimizers.check_schedule(self._schedule)
        self._trained = [p for p in self.model.parameters() if p.requires_grad]
        # What lies behind the constraints is averaged, so averaged weights satisfy them exactly.
        self._averaged: AveragedModel | None = None
        if (decay := training.get("average")) is not None:
            if not (isinstance(decay, float) and 0 < decay < 1):
                raise ValueError(f"training: average: expected a number between 0 and 1, got {decay!r}")
            self._averaged = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(decay))

        self.step = 0
        self.seconds = 0.0
        self.curve: list[dict[str, Any]] = []
        self.last: dict[str, float] = {}  # Loss, gradient norm and rate of the last step.
        self._hidden: networks.State = None
        self._first: float | None = None  # Loss of the first step.
        self._losses: list[float] = []  # Since the last evaluation.
        self._times: list[float] = []
        self._best: dict[str, Any] | None = None

    @property
    def epoch(self) -> float:
        """Number of epochs gone by."""
        return self.step / self.task.steps_per_epoch

    @property
    def measured_model(self) -> nn.Module:
        """The network that is measured: that of the averaged weights, where the row averages them."""
        return self.model if self._averaged is None else self._averaged.module

    @property
    def seconds_per_step(self) -> float:
        """Median of the last steps, evaluations not counted."""
        return float(torch.tensor(self._times).median()) if self._times else math.nan

    def train_step(self) -> None:
        """Take one step, and measure where it is due.

        Raises:
            DivergedError: If there is no going on. The weights are those before the step.
        """
        began = time.perf_counter()
        loss = self._optimize()
        self._losses.append(loss)
        self.step += 1
        self._times = [*self._times, time.perf_counter() - began][-TIMED_STEPS:]
        if self._every and (self.step % self._every == 0 or self.step == self.steps):
            self._measure()
        self.seconds += time.perf_counter() - began
        if self.curve and self.curve[-1]["step"] == self.step:
            self.curve[-1]["seconds"] = round(self.seconds, 3)

    def _optimize(self) -> float:
        task, processes = self.task, self.processes
        whole = task.batch(self.step)
        batch = whole.part(processes.part(whole.inputs.shape[1])).to(processes.device, self.dtype)
        begins = not task.carries_state or self.step % task.steps_per_epoch == 0
        self.model.train()
        outputs, hidden = self.model(batch.inputs, None if begins else self._hidden)
        loss = task.loss(outputs, batch) / batch.count
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        # Each process has its part of the loss, and all of the penalty.
        (loss + sp.penalty(self.model).to(loss.dtype) / processes.size).backward()
        processes.sum_gradients(self._trained)
        norm = self._clip()
        total = float(processes.sum(loss.detach().clone()))
        self._first = total if self._first is None else self._first
        if not math.isfinite(total) or total > DIVERGED * max(self._first, task.baseline):
            raise DivergedError(f"step {self.step}: loss {total}")
        if not math.isfinite(norm):
            raise DivergedError(f"step {self.step}: gradient of norm {norm}")
        rate = optimizers.factor(
            self._schedule, self.step, self.steps, task.steps_per_epoch, self._measured()
        )
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * rate
            optimizer.step()
        if self._averaged is not None:
            self._averaged.update_parameters(self.model)
        if task.carries_state:
            self._hidden = _detached(hidden)
        self.last = {"loss": total, "gradient": norm, "rate": rate}
        return total

    def _clip(self) -> float:
        """Clip the gradient and return its norm before that."""
        if self._clip_value is not None:
            norm = nn.utils.clip_grad_norm_(self._trained, math.inf)
            nn.utils.clip_grad_value_(self._trained, self._clip_value)
            return float(norm)
        return float(nn.utils.clip_grad_norm_(self._trained, self._clip_norm))

    def _measured(self) -> list[float]:
        """Return the scores on the first split that is measured, the lower the better."""
        sign, split = -1 if self.task.metric in HIGHER_IS_BETTER else 1, self._splits[0]
        # A comparison with NaN is false, so an early one would stay the best.
        return [sign * point[split] if math.isfinite(point[split]) else math.inf for point in self.curve]

    def _measure(self) -> None:
        point: dict[str, Any] = {
            "step": self.step,
            "epoch": round(self.epoch, 4),
            "loss": math.fsum(self._losses) / len(self._losses),
        }
        for split in self._splits:
            point[split] = self.evaluate(split)
        before = min(self._measured(), default=math.inf)
        self.curve.append(point)
        self._losses = []
        if "validation" in self._splits and self._measured()[-1] < before:
            self._best = {name: value.clone() for name, value in self.measured_model.state_dict().items()}

    @torch.no_grad()
    def evaluate(self, split: str) -> float:
        """Return the score on held-out data.

        Args:
            split: Which.
        """
        processes, task, model = self.processes, self.task, self.measured_model
        model.eval()
        total = torch.zeros((), dtype=torch.float64, device=processes.device)
        count, hidden = 0, None
        for whole in task.evaluation(split):
            count += whole.count
            batch = whole.part(processes.part(whole.inputs.shape[1])).to(processes.device, self.dtype)
            if batch.inputs.shape[1] > 0:  # Of fewer sequences than processes, some have none.
                outputs, hidden = model(batch.inputs, hidden if task.carries_state else None)
                total += task.score(outputs, batch)
        return task.from_mean(float(processes.sum(total)) / count)

    def final_scores(self) -> dict[str, Any]:
        """Return the task's further scores, of the network that was best on the validation data."""
        model = self.measured_model
        model.eval()
        if self._best is None:
            return self.task.final_scores(model, self.processes.device, self.dtype)
        last = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(self._best)
        scores = self.task.final_scores(model, self.processes.device, self.dtype)
        model.load_state_dict(last)
        return scores

    def is_finite(self) -> bool:
        """Return whether all weights are."""
        return all(bool(p.isfinite().all()) for p in self.model.parameters())

    def state(self) -> dict[str, Any]:
        """Return everything in plain types and tensors, for a checkpoint. All processes have to call it."""
        return {
            "model": self.model.state_dict(),
            "averaged": None if self._averaged is None else self._averaged.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "seconds": self.seconds,
            "curve": self.curve,
            "hidden": self.processes.gather(self._hidden),
            "first": self._first,
            "losses": self._losses,
            "times": self._times,
            "best": self._best,
            "random": torch.get_rng_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go back to a state.

        Args:
            state: What :meth:`state` returned.
        """
        self.model.load_state_dict(state["model"])
        if self._averaged is not None:
            self._averaged.load_state_dict(state["averaged"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.seconds, self._best = state["step"], state["seconds"], state["best"]
        self.curve, self._losses = list(state["curve"]), list(state["losses"])
        self._first, self._times = state["first"], list(state["times"])
        self._hidden = self.processes.scatter(state["hidden"])
        torch.set_rng_state(state["random"])


def _detached(state: networks.State) -> networks.State:
    if isinstance(state, tuple):
        return tuple(tensor.detach() for tensor in state)
    assert isinstance(state, Tensor)
    return state.detach()
