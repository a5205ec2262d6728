"""Listening: what the training images say about a symmetry, and whether it is worth leaving it.

**Do the data break the symmetry?** While r is 0, the network is equivariant: an image and its
rotated version have the same loss, and teach the tied weights the same. So training cannot tell how
an image is oriented, and neither can it remember it. What does know is the gradient in r: if x
gives the gradient h, then g·x gives ρ(g) h, whose mean over the group is 0. Hence, if every image
is as likely in one orientation as in another, the gradients of two disjoint batches are
uncorrelated, however long the network has been trained on both:

    T = Σ_t <h_1 + … + h_(t-1), h_t> / q_t    has mean 0 and variance
    V = Σ_t mean over g of <h_1 + … + h_(t-1), ρ(g) h_t>² / q_t²,    with q_t = ‖h_1‖² + … + ‖h_t‖².

No images need to be held out. If the data prefer an orientation, gradients have a common part μ,
and after n steps T is about n ‖μ‖² / (‖μ‖² + tr Σ), with the variance Σ of a gradient. The
*certainty* T / √V says how sure it is that there is any.

**Is it worth it?** Real images nearly always prefer some orientation a little: light comes from one
side, pictures are cut from the same photograph. A remainder that follows the mean gradient of n
steps follows the common part, ‖μ‖², and noise as well, tr Σ / n; it helps if there is more of the
first. Then T, the *signal*, is above 1. So remainders begin to learn as soon as T is above 1 by
four standard deviations √V. Fewer would not do: the question is asked after every step of every
epoch, and chance has as many tries.

**Long epochs** are heard in windows: the gradients of a sixteenth of the steps so far are added up
before they are compared with those before. **Short epochs** have too few steps to tell V from. An
image that is seen again agrees with itself, so more epochs do not help; but the images of a batch
are as good as those of several steps: ``parts.py`` tells the gradients of its parts apart.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .orbits import Orbits
from .slack import Remainder

__all__ = ["Evidence", "Listener"]

MIN_SIGNAL = 1.0
"""n ‖μ‖² / tr Σ from which on remainders may learn: more signal than noise."""
DOUBT = 4.0
"""Standard deviations by which the signal must be above that, whenever it is looked at."""
MIN_STEPS = 16
"""Gradients before anything is decided: fewer say little about their variance."""
ENOUGH_STEPS = 32
"""Gradients of an epoch that are heard one by one; fewer steps are split, more are added up."""
TINY = 1e-300
"""In place of 0, to divide by: a layer may have no gradient at all."""


class Evidence(NamedTuple):
    """What the gradients of an epoch say about a layer, or about all of them together."""

    steps: int
    signal: float
    """T: how much gradients have in common, beside the noise of their mean."""
    deviation: float
    """√V: the standard deviation of the signal for data that have the symmetry."""

    @property
    def certainty(self) -> float:
        """T / √V: above 4 the data prefer an orientation; between -2 and 2 it may be chance."""
        if self.deviation == 0:
            return 0.0
        return self.signal / self.deviation

    @property
    def signal_needed(self) -> float:
        """The signal that would be above the noise beyond doubt."""
        return MIN_SIGNAL + DOUBT * self.deviation

    @property
    def asks_for_slack(self) -> bool:
        """Whether there is more signal than noise, beyond doubt."""
        return self.signal > self.signal_needed


class Listener:
    """Adds up the gradients in the remainders, step by step, within an epoch.

    >>> tie = ien.tying.projection.Tie(rotation(4), ((4, 4),), ((1, 1),))
    >>> remainder = Remainder(tie, torch.zeros(4, 1, 3, 3), slack=1.0, closed=True)
    >>> listener = Listener({"conv": remainder})
    >>> for step in range(20):  # the same gradient in every step
    ...     listener.hear({"conv": torch.arange(36.0).view(4, 1, 3, 3)}, epoch=0)
    >>> listener.evidence().certainty > 4, listener.opened
    (True, True)
    """

    def __init__(self, remainders: Mapping[str, Remainder]) -> None:
        self.remainders = remainders
        self.orbits: dict[str, Orbits] = {}
        """Where the group moves the numbers of each remainder; prepared when it is first heard."""
        self.epoch = 0
        self.parts = 1
        """In how many parts a batch must be heard, since an epoch has too few steps."""
        self.views = 1
        """How often each image is in a batch."""
        self._forget()

    @property
    def opened(self) -> bool:
        """Whether remainders may learn; once they do, gradients depend on how images lie."""
        first = next(iter(self.remainders.values()))  # all of them open together
        return not first.is_closed()

    def _forget(self) -> None:
        """Begin again: an image that is seen twice would agree with itself."""
        self.steps = 0
        """Gradients that were heard: of steps, windows of steps or parts of one."""
        self.steps_of_epoch = 0
        self.window: dict[str, Tensor] = {}
        """The sum of gradients that wait to be heard together, of each layer."""
        self.waiting = 0
        """Of how many steps these are."""
        self.sums: dict[str, Tensor] = {}
        """Σ h of each layer, (elements, orbits)."""
        self.squares = dict.fromkeys(self.remainders, 0.0)
        """q, Σ ‖h‖², of each layer."""
        self.signal = dict.fromkeys([*self.remainders, ""], 0.0)
        """T of each layer, and its mean over all layers."""
        self.variance = dict.fromkeys([*self.remainders, ""], 0.0)
        """V of each layer, and of the mean."""

    @torch.no_grad()
    def listen(self, pieces: Sequence[Mapping[str, Tensor]], epoch: int) -> None:
        """Hear the gradients of one step, at once or together with those of the next steps.

        Args:
            pieces: The gradient of the whole batch, or one for each of its parts.
            epoch: In which images are seen again.
        """
        self._begin(epoch)
        self.steps_of_epoch += 1
        if len(pieces) > 1:
            for gradients in pieces:
                self.hear(gradients, epoch)
            return
        (gradients,) = pieces
        if self.steps_of_epoch < ENOUGH_STEPS:
            self.hear(gradients, epoch)
            return
        if not self.window:
            self.window = {name: torch.zeros_like(h) for name, h in gradients.items()}
        torch._foreach_add_(list(self.window.values()), [gradients[name] for name in self.window])
        self.waiting += 1
        if self.waiting >= self.steps_of_epoch // MIN_STEPS:
            self.hear(self.window, epoch)
            self.window, self.waiting = {}, 0

    @torch.no_grad()
    def hear(self, gradients: Mapping[str, Tensor], epoch: int) -> None:
        """Add one gradient, of images that were not heard before in this epoch.

        Args:
            gradients: Those in each remainder, by the name of its layer.
            epoch: In which images are seen again.
        """
        self._begin(epoch)
        moved = {}
        products = []
        for name, gradient in gradients.items():
            orbits = self._orbits_of(name)
            h = orbits.matrix(gradient)  # (elements, orbits)
            total = self.sums.setdefault(name, torch.zeros_like(h))
            with torch.autocast(h.device.type, enabled=False):
                products.append(torch.cat([total, h]) @ h.T)  # (2 elements, elements)
            moved[name] = h
        totals, own = torch.stack(products).chunk(2, 1)  # (layers, elements, elements) each
        squares = own.diagonal(dim1=1, dim2=2).sum(1, keepdim=True)  # ‖h‖², (layers, 1)
        numbers = torch.cat([squares, orbits.with_elements(totals)], 1).tolist()  # fetched at once
        heard = sum(map(sum, numbers))
        if not math.isfinite(heard) or not any(square for square, *_ in numbers):
            return  # a step that a gradient scaler skips too, or a part of a batch without images
        self.steps += 1
        means = [0.0] * (len(numbers[0]) - 1)
        for (name, h), (square, *of_elements) in zip(moved.items(), numbers, strict=True):
            self.sums[name] += h
            self.squares[name] += square
            shares = [product / max(self.squares[name], TINY) for product in of_elements]
            self._note(name, shares)
            for i, share in enumerate(shares):
                means[i] += share / len(gradients)
        self._note("", means)
        if self.steps >= MIN_STEPS and self.evidence().asks_for_slack:
            for remainder in self.remainders.values():
                remainder.open()

    def _begin(self, epoch: int) -> None:
        """Forget the epoch before, if it is over; if it was short, hear batches in parts."""
        if epoch == self.epoch:
            return
        if 0 < self.steps_of_epoch < MIN_STEPS:
            self.parts = max(self.parts, math.ceil(ENOUGH_STEPS / self.steps_of_epoch))
        self.epoch = epoch
        self._forget()

    def _orbits_of(self, name: str) -> Orbits:
        free = self.remainders[name].free
        if name not in self.orbits or self.orbits[name].places.device != free.device:
            self.orbits[name] = Orbits.of(self.remainders[name].tie, free)
        return self.orbits[name]

    def _note(self, name: str, shares: Sequence[float]) -> None:
        """Add a step's <Σ h, ρ(g) h> / q to T and V; the first element is the identity."""
        self.signal[name] += shares[0]
        self.variance[name] += sum(share**2 for share in shares) / len(shares)

    def evidence(self, name: str = "") -> Evidence:
        """Return what has been heard about a layer in this epoch, or about all of them."""
        return Evidence(self.steps, self.signal[name], math.sqrt(self.variance[name]))

    def status(self) -> str:
        """Say in a line how things stand."""
        heard = self.evidence()
        if not heard.steps:
            return "listening, all weights are tied: nothing heard yet"
        numbers = f"certainty {heard.certainty:.1f}, signal {heard.signal:.1f} after {heard.steps} gradients"
        if self.opened:
            return f"the data prefer an orientation ({numbers} of epoch {self.epoch}): remainders learn"
        needed = f"{MIN_STEPS} are needed"
        if heard.steps >= MIN_STEPS:
            needed = f"remainders learn from a signal of {heard.signal_needed:.1f} on"
        return f"listening, all weights are tied: {numbers} of epoch {self.epoch}; {needed}"

    def state_dict(self) -> dict[str, Any]:
        """Return what a run that is resumed needs."""
        state = {}
        for key, value in vars(self).items():
            if key in ("sums", "window"):
                state[key] = {name: total.clone() for name, total in value.items()}
            elif isinstance(value, dict):
                state[key] = dict(value)
            else:
                state[key] = value
        del state["remainders"], state["orbits"]  # they belong to the model
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` returned."""
        expected = self.state_dict()
        if state.keys() != expected.keys() or state["squares"].keys() != expected["squares"].keys():
            raise ValueError("this state belongs to a model with other layers, or to another version")
        for kind in ("sums", "window"):
            for name, total in state[kind].items():
                wanted: Tensor = self.remainders[name].free
                if kind == "sums":
                    wanted = self._orbits_of(name).matrix(wanted)
                if total.shape != wanted.shape or total.dtype != wanted.dtype or not total.isfinite().all():
                    raise ValueError(f"this state has no sum of gradients for {name}, but something else")
        vars(self).update(copy.deepcopy(dict(state)))
        for tensors in (self.sums, self.window):
            for name, total in tensors.items():
                tensors[name] = total.to(self.remainders[name].free.device)
