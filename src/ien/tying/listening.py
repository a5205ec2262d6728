"""Listening: what the training images say about a symmetry, and whether it is worth leaving it.

**Do the data break the symmetry?** While r is 0, the network is equivariant: an image and its
rotated version have the same loss, and teach the tied weights the same. So training cannot tell how
an image is oriented, and neither can it remember it. What does know is the gradient in r: if x
gives the gradient h, then g·x gives ρ(g) h, whose mean over the group is 0. Hence, if every image
is as likely in one orientation as in another, the gradients of two disjoint batches are
uncorrelated, however long the network has been trained on both:

    T = Σ_t <h_1 + … + h_(t-1), h_t>    has mean 0 and variance
    V = Σ_t mean over g of <h_1 + … + h_(t-1), ρ(g) h_t>².

No images need to be held out. If the data prefer an orientation, all gradients have a common part μ
and T grows as n² ‖μ‖² / 2. The *certainty* T / √V says how sure that is.

**Is it worth it?** Real images nearly always prefer some orientation a little: light comes from
above, pictures are cut from the same photograph. A remainder that is fitted to the mean gradient of
n steps follows the common part, and the noise tr Σ / n as well; it helps if there is more of the
first. So remainders begin to learn as soon as it is beyond doubt that the *signal*,
n ‖μ‖² / tr Σ, is above 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .projection import Tie
from .slack import Remainder

__all__ = ["Evidence", "Listener"]

MIN_SIGNAL = 1.0
"""n ‖μ‖² / tr Σ from which on remainders may learn: more signal than noise."""
DOUBT = 3.0
"""Standard deviations by which the signal must be above that."""
MIN_STEPS = 16
"""Steps before anything is decided: fewer say little about the variance of a gradient."""
TINY = 1e-300
"""In place of 0, to divide by."""
EPS = 1e-6
"""Gradients that are all equal have no noise at all: what the noise counts as then."""


class Evidence(NamedTuple):
    """What the gradients of an epoch say about a layer, or about all of them together."""

    steps: int
    certainty: float
    """T / √V: above 4 the data prefer an orientation; between -2 and 2 it may be chance."""
    signal: float
    """n ‖μ‖² / tr Σ: how large the common part of n gradients is beside the noise of their mean."""

    @property
    def deviation(self) -> float:
        """The standard deviation of the signal."""
        if self.certainty == 0:
            return math.nan
        return self.signal / self.certainty

    @property
    def asks_for_slack(self) -> bool:
        """Whether there is more signal than noise, beyond doubt."""
        return self.certainty > 0 and self.signal - DOUBT * self.deviation > MIN_SIGNAL


class Listener:
    """Adds up the gradients in the remainders, step by step, within an epoch.

    >>> tie = Tie(rotation(4), ((4, 4),), ((1, 1),))
    >>> remainder = Remainder(tie, torch.zeros(4, 1, 3, 3), slack=1.0)
    >>> listener = Listener({"conv": remainder})
    >>> for step in range(20):  # the same gradient in every step
    ...     listener.hear({"conv": torch.arange(36.0).view(4, 1, 3, 3)}, epoch=0)
    >>> listener.evidence().certainty > 4, listener.opened
    (True, True)
    """

    def __init__(self, remainders: Mapping[str, Remainder]) -> None:
        self.remainders = remainders
        self.epoch = 0
        self.opened = False
        """Whether remainders may learn; once they do, gradients depend on how images lie."""
        self._forget()

    def _forget(self) -> None:
        """Begin again: an image that is seen twice would agree with itself."""
        self.steps = 0
        self.sums: dict[str, Tensor] = {}
        """Σ h of each layer."""
        self.squares = dict.fromkeys(self.remainders, 0.0)
        """Σ ‖h‖² of each layer."""
        self.agreement = dict.fromkeys([*self.remainders, ""], 0.0)
        """T of each layer, and of all layers together."""
        self.variance = dict.fromkeys([*self.remainders, ""], 0.0)
        """V of each layer, and of all layers together."""

    @torch.no_grad()
    def hear(self, gradients: Mapping[str, Tensor], epoch: int) -> None:
        """Add the gradients of one step.

        Args:
            gradients: Those in each remainder, by the name of its layer.
            epoch: In which images are seen again.
        """
        if epoch != self.epoch:
            self.epoch = epoch
            self._forget()
        products = []
        for name, h in gradients.items():
            total = self.sums.setdefault(name, torch.zeros_like(h, dtype=torch.float32))
            products.append(_products(self.remainders[name].tie, total, h.float()))
        numbers = torch.stack(products).tolist()  # (layers, 1 + elements), fetched at once
        if not math.isfinite(sum(map(sum, numbers))):
            return  # a step that a gradient scaler skips too
        self.steps += 1
        together = [0.0] * (len(numbers[0]) - 1)
        for (name, h), (square, *products_of_layer) in zip(gradients.items(), numbers, strict=True):
            self.sums[name] += h
            self.squares[name] += square
            self._note(name, products_of_layer)
            for i, product in enumerate(products_of_layer):
                together[i] += product / max(self.squares[name], TINY)
        self._note("", together)
        if self.steps >= MIN_STEPS and self.evidence().asks_for_slack:
            self.opened = True

    def _note(self, name: str, products: list[float]) -> None:
        """Add a step's <Σ h, ρ(g) h> to T and V; the first element is the identity."""
        self.agreement[name] += products[0]
        self.variance[name] += sum(product**2 for product in products) / len(products)

    def evidence(self, name: str = "") -> Evidence:
        """Return what has been heard about a layer in this epoch, or about all of them."""
        certainty = self.agreement[name] / math.sqrt(max(self.variance[name], TINY))
        layers = list(self.remainders)
        if name:
            layers = [name]
        n = self.steps
        if n < 2:
            return Evidence(n, certainty, math.nan)
        # on average, T is n (n - 1) ‖μ‖² / 2, and Σ ‖h‖² is n (‖μ‖² + tr Σ)
        shares = []
        for layer in layers:
            common = 2 * self.agreement[layer] / (n * (n - 1))
            shares.append(n * common / max(self.squares[layer], TINY))
        share = min(sum(shares) / len(shares), 1 - EPS)  # ‖μ‖² / (‖μ‖² + tr Σ), the mean over layers
        return Evidence(n, certainty, n * share / (1 - share))

    def status(self) -> str:
        """Say in a line how things stand."""
        heard = self.evidence()
        if not heard.steps:
            return "listening: nothing heard yet, all weights are tied"
        numbers = f"certainty {heard.certainty:.1f}, signal {heard.signal:.1f} after {heard.steps} steps"
        if self.opened:
            return f"the data prefer an orientation ({numbers} of epoch {self.epoch}): remainders learn"
        return f"listening: all weights are tied ({numbers} of epoch {self.epoch})"

    def state_dict(self) -> dict[str, Any]:
        """Return what a run that is resumed needs."""
        state = {key: value for key, value in vars(self).items() if key != "remainders"}
        state["sums"] = {name: total.clone() for name, total in self.sums.items()}
        for key in ("squares", "agreement", "variance"):
            state[key] = dict(state[key])
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` returned."""
        expected = self.state_dict()
        if state.keys() != expected.keys() or state["squares"].keys() != expected["squares"].keys():
            raise ValueError("this state belongs to a model with other layers, or to another version")
        vars(self).update(state)


def _products(tie: Tie, total: Tensor, h: Tensor) -> Tensor:
    """Return ‖h‖² and <total, ρ(g) h> for every quarter turn and flip g: (1 + elements,)."""
    found = [h.square().sum()]
    for i in range(len(tie.group)):
        if tie.group.exact[i]:
            found.append((total * tie.moved(h, i)).sum())
    return torch.stack(found)
