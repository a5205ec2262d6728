"""The recommended setting: from an ordinary network and its optimizer to an equivariant one that stays so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..groups.group import Group
from ..groups.members import Blocks
from ..loss.feature_groups import FeatureGroups, Spec
from ..loss.objective import Equivariance, EquivarianceLoss
from ..measuring.inputs import try_model
from .keep import check_loose, check_optimizer, keep_equivariant
from .start import Kernels, Start, Weights, start_after

__all__ = ["Recommended", "recommended"]


class Recommended(EquivarianceLoss):
    """The objective that :func:`recommended` makes."""

    start: Start
    """What became of each layer of the model; ``print`` it for a table."""

    @property
    def transforms(self) -> bool:
        """Whether each image is shown under a random element, in its place."""
        return self.views == 1 and not all(exact for group in self.groups for exact in group.exact)

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        *,
        g: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Equivariance:
        """As that of :class:`EquivarianceLoss`; where it transforms, ``g`` (B,) are the elements to show."""
        if not self.transforms or not len(x):
            return super().__call__(model, x, g=g, generator=generator)
        (group,) = self.groups
        g = self.sample(len(x), generator) if g is None else torch.as_tensor(g, device="cpu")
        return replace(super().__call__(model, group.act(x, g), g=g[:0]), g=g)

    def sample(self, batch_size: int, generator: torch.Generator | None = None) -> Tensor:
        """Elements for a batch: those of transformed views, or (B,) to show images under in their place."""
        if not self.transforms:
            return super().sample(batch_size, generator)
        (group,) = self.groups
        return group.sample(batch_size, generator, include_identity=True)

    def __repr__(self) -> str:
        shown = f", shows images under random elements of {next(iter(self.groups))}" * self.transforms
        return f"{super().__repr__()[:-1]}{shown})"


def recommended(
    model: nn.Module,
    group: Group | str,
    feature_groups: Spec | Mapping[str, Spec],
    input: Tensor,
    optimizer: torch.optim.Optimizer,
    layers: str | Sequence[str] | Mapping[str, float] = (),
    weights: Weights = "random",
    kernels: Kernels | None = None,
) -> Recommended:
    """Make ``model`` equivariant, let ``optimizer`` keep it so, and return the objective to train it with.

    It is changed by :func:`start_equivariant`, with all of its demands on the model and ``input``, and kept
    by :func:`keep_equivariant`. Under quarter turns and flips there is nothing left to learn: the objective
    runs the model on the images alone, at its own cost, and a loop without it does as well. Elements that
    resample are not exact, and to see them helps: there it runs the model once, too, but on each image under
    a random element of the group, the identity among them, with 0 where a turned image has no pixels. ``g``
    of its result tells which, for targets that turn with the image: ``group.act(y, out.g)``. Test with
    ``model(x)``. With ``layers`` the objective shows each image as it is and a copy instead, and compares all
    members of the feature groups that each layer turned out to have (``action="regular"``), with weight 1 or
    those of a mapping.

    ``weights="project"`` is for a model that is trained already. ``kernels`` are smooth unless it is, for
    images that come in all orientations; free ones suit those that turn by quarters only, and are smooth all
    the same where an element resamples. ``feature_groups`` may map modules to their own, with ``""`` for the
    rest. Frozen layers are changed too.

    >>> net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))
    >>> images, optimizer = torch.rand(6, 1, 9, 9), torch.optim.Adam(net.parameters())
    >>> objective = recommended(net, "rot4", feature_groups=4, input=images, optimizer=optimizer)
    >>> objective(net, images).views, objective.start.layers["3"].exact < 1e-10
    (1, True)
    """
    samples = 1 if layers else 0
    objective = Recommended(group, layers, 1, samples=samples, action="regular")
    if isinstance(model, nn.Module):
        check_optimizer(optimizer, model)

    def trial(model: nn.Module, x: Tensor) -> None:
        try_model(model, x)
        if layers:
            objective(model, x)

    def settle(returned: Mapping[str, Blocks], loose: Sequence[str]) -> None:
        check_loose(model, loose)
        for name in filter(returned.__contains__, objective.layers):
            objective.feature_groups[name] = _spec(name, returned[name])

    if kernels is None:
        kernels = "free" if weights == "project" else "smooth"
    objective.start = start_after(trial, settle, model, group, feature_groups, input, weights, kernels)
    keep_equivariant(objective.start, optimizer)
    return objective


def _spec(name: str, blocks: Blocks) -> FeatureGroups:
    """The feature groups of a layer, from those seen in its maps."""
    sizes = [size for size, _ in blocks]
    if sizes != sorted(set(sizes), reverse=True):
        raise ValueError(
            f"layer {name!r} joins maps, in feature groups {'-'.join(map(str, sizes))}, and those that are "
            f"compared go from larger to smaller sizes: give the layers whose maps it joins"
        )
    return FeatureGroups.of({size: channels // size for size, channels in blocks})
