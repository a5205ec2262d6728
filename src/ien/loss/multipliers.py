"""Weights of the loss that find themselves: a target for each relative error, and dual ascent.

    minimise L_task   subject to   r_i ≤ t_i   for the relative error r_i of every group and layer

    L  =  L_task  +  Σ_i λ_i (r_i - t_i)                        the Lagrangian; λ_i ≥ 0

The network descends L, and after every step each λ_i ascends it: it grows while its error is above
its target, and shrinks while it is below. What a network needs spans decades, so λ moves on a
logarithmic scale, and by a bounded share per step however far away the error is:

    r̄_i      ←  0.9 r̄_i + 0.1 r_i                               running mean
    gap_i    =  log( r̄_i / t_i ), at most 1 either way
    log λ_i  ←  log λ_i + 0.02 gap_i, or 0.05 gap_i below 0     within bounds
    weight_i =  λ_i · exp( gap_i )                              0 at the lower bound

The last line acts at once where λ acts late, which keeps the two from chasing each other. Steps up
are small because a network that is pressed hard before it has learnt anything did not recover in
our trials (``docs/method.md``); letting go quickly did no harm.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._text import nearest

__all__ = ["Multipliers", "targets_of"]

FIRST = 0.01
"""Every λ at first: too little to shape a network."""
SMALLEST, LARGEST = 1e-4, 100.0
"""Bounds of every weight; at the lower one it counts as 0."""
RISE, FALL = 0.02, 0.05
"""By how much log λ changes in a step, at most, above the target and below it."""
MEMORY = 0.9
"""Of the running mean: it forgets an error after about ten steps."""
WARM_UP = 20
"""Steps in which the running means settle and every λ stays as it is."""
CHECKED_EVERY = 100
"""Steps between two looks at whether the targets can be reached."""


def targets_of(target: float | Mapping[str, float], layers: Sequence[str]) -> dict[str, float]:
    """Give every layer its target.

    Args:
        target: One for all layers, or a mapping with an entry for each of them.
        layers: The names of all layers.

    >>> targets_of(0.05, ["a", "b"]), targets_of({"a": 0.05, "b": 0.2}, ["a", "b"])
    ({'a': 0.05, 'b': 0.05}, {'a': 0.05, 'b': 0.2})
    """
    targets = dict.fromkeys(layers, target)
    if isinstance(target, Mapping):
        for name in target:
            if name not in layers:
                raise KeyError(f"target names {name!r}, which is not a chosen layer; {nearest(name, layers)}")
        missing = [name for name in layers if name not in target]
        if missing:
            raise KeyError(
                f"target has no entry for layer {missing[0]!r}; it has {', '.join(target) or 'none at all'}"
            )
        targets = {name: target[name] for name in layers}
    for name, value in targets.items():
        # a bool is a number to Python, but nobody means it
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
            raise ValueError(
                f"the target of layer {name!r} must be a relative error above 0, such as 0.05 (0 is "
                f"equivariant: use make_equivariant for that); got {value!r}"
            )
    return {name: float(value) for name, value in targets.items()}  # type: ignore[arg-type]


class Multipliers:
    """One multiplier λ for each group and layer, and the running means that it follows.

    Args:
        targets: (group, layer) → the relative error wanted.
    """

    def __init__(self, targets: Mapping[tuple[str, str], float]) -> None:
        self.targets = dict(targets)
        self.keys = list(targets)
        self.wanted = torch.tensor(list(targets.values()), dtype=torch.float32, device="cpu")  # (K,)
        self.logs = torch.full_like(self.wanted, math.log(FIRST))  # (K,) log λ
        self.means = self.wanted.clone()  # (K,) running means of the errors
        self.steps = 0
        self.warned = False

    @property
    def weights(self) -> Tensor:
        """What each error is multiplied by in the next step, (K,)."""
        damped = self.logs
        if self.steps > WARM_UP:
            damped = damped + self._gaps
        low, high = math.log(SMALLEST), math.log(LARGEST)
        return damped.clamp(max=high).exp().masked_fill(damped <= low, 0)

    def rounded(self) -> list[float]:
        """The weights for people to read, without the digits that float32 does not have."""
        return [float(f"{weight:.6g}") for weight in self.weights.tolist()]

    def penalty(self, errors: Tensor) -> Tensor:
        """Compute Σ λ (error - target), with gradient; errors are (K,)."""
        self._to(errors.device)
        return (self.weights.to(errors.dtype) * (errors - self.wanted.to(errors.dtype))).sum()

    def update(self, errors: Tensor, images: int) -> None:
        """Move every λ, once in a training step.

        Args:
            errors: The relative errors of this step, (K,), without gradient.
            images: How many images they are the mean of.
        """
        errors = _mean_over_processes(errors.float(), images)
        self._to(errors.device)
        # one bad batch must not spoil the mean for good
        errors = torch.where(errors.isfinite(), errors, self.means)
        self.steps += 1
        if self.steps == 1:
            self.means = errors
        else:
            self.means = MEMORY * self.means + (1 - MEMORY) * errors
        if self.steps > WARM_UP:
            gaps = self._gaps
            logs = self.logs + torch.where(gaps > 0, RISE * gaps, FALL * gaps)
            self.logs = logs.clamp(math.log(SMALLEST), math.log(LARGEST))
        # now and then: reading from a GPU makes it wait
        if self.steps % CHECKED_EVERY == 0:
            self._warn_if_out_of_reach()

    def _warn_if_out_of_reach(self) -> None:
        """Say once if the largest multiplier does not bring an error down to its target."""
        if self.warned or not bool((self.logs >= math.log(LARGEST)).any()):
            return
        worst = int(self.logs.argmax())
        group, layer = self.keys[worst]
        warnings.warn(
            f"layer {layer!r} stays at a relative error of {float(self.means[worst]):.3g} under {group}, "
            f"above its target {self.targets[group, layer]:g}, with the largest multiplier: ask for more "
            f"than the floor that ien.measure prints",
            stacklevel=4,  # who called the objective
        )
        self.warned = True

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold."""
        names = [" ".join(key) for key in self.keys]
        logs, means = self.logs.clone(), self.means.clone()
        return {"names": names, "steps": self.steps, "logs": logs, "means": means}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what :meth:`state_dict` gave for the same groups and layers."""
        names = [" ".join(key) for key in self.keys]
        if list(state.get("names", [])) != names:
            raise ValueError(
                f"these are the multipliers of {', '.join(state.get('names', [])) or 'no layer'}; "
                f"this objective has {', '.join(names)}"
            )
        self.steps = int(state["steps"])
        device = self.wanted.device
        self.logs = state["logs"].to(device, torch.float32).clone()
        self.means = state["means"].to(device, torch.float32).clone()

    @property
    def _gaps(self) -> Tensor:
        """How far each error is from its target, log(r̄ / t), at most 1 either way: (K,)."""
        return (self.means / self.wanted).log().clamp(-1, 1)

    def _to(self, device: torch.device) -> None:
        """Stay where the errors are: reading them on the CPU would make a GPU wait."""
        self.wanted = self.wanted.to(device)
        self.logs = self.logs.to(device)
        self.means = self.means.to(device)


def _mean_over_processes(errors: Tensor, images: int) -> Tensor:
    """Average errors (K,) over the images of all processes that train together.

    Every process then has the same multipliers.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return errors
    sums = torch.cat([errors * images, errors.new_full((1,), images)])  # (K + 1,)
    dist.all_reduce(sums)
    return sums[:-1] / sums[-1]
