"""Recommended: one call that makes a model equivariant, keeps it so, and returns its objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..groups.group import Group
from ..groups.members import Blocks
from ..loss.feature_groups import FeatureGroups, Spec
from ..loss.layers import weights_of
from ..loss.objective import Equivariance, EquivarianceLoss
from ..measuring.inputs import device_of, eval_mode
from .keep import check_optimizer, check_untied, keep_equivariant
from .layouts import sizes_of, sizes_text
from .start import KernelKind, Start, Weights, restored_on_error, start_equivariant

__all__ = ["Recommended", "recommended"]


class Recommended(EquivarianceLoss):
    """The objective that :func:`recommended` makes: call it with a model and a batch.

    >>> net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    >>> images, optimizer = torch.rand(6, 1, 9, 9), torch.optim.Adam(net.parameters())
    >>> objective = recommended(net, "rot4", 4, images, optimizer, layers=["2"])
    >>> out = objective(net, images)
    >>> objective.transforms, out.views, out.loss.item() < 1e-8
    (False, 2, True)
    """

    start: Start
    """What became of each layer of the model; ``print`` it for a table."""

    @property
    def transforms(self) -> bool:
        """Whether each image is shown under a random element instead of the original."""
        exact = all(all(group.exact) for group in self.groups)
        return self.views == 1 and not exact

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        *,
        g: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Equivariance:
        """Run the model on a batch, and return its output, the loss and what it consists of.

        Args:
            model: The model that was prepared.
            x: Images (B, C, H, W).
            g: Elements, as :meth:`sample` draws them; by default it is called.
            generator: Where to draw them from; torch's own by default.

        Returns:
            The result of :class:`EquivarianceLoss`, with the elements in ``g``.
        """
        if not self.transforms or not len(x):
            return super().__call__(model, x, g=g, generator=generator)
        (group,) = self.groups
        if g is None:
            g = self.sample(len(x), generator)
        g = torch.as_tensor(g, device="cpu")
        result = super().__call__(model, group.act(x, g), g=g[:0])
        return replace(result, g=g)

    def sample(self, batch_size: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw elements for a batch: one for each further view, or (B,) to show the images under.

        Args:
            batch_size: B, how many images there are.
            generator: Where to draw from; torch's own by default.
        """
        if not self.transforms:
            return super().sample(batch_size, generator)
        (group,) = self.groups
        return group.sample(batch_size, generator, include_identity=True)

    def __repr__(self) -> str:
        text = super().__repr__()
        if not self.transforms:
            return text
        (group,) = self.groups
        return f"{text[:-1]}, shows images under random elements of {group})"


def recommended(
    model: nn.Module,
    group: Group | str,
    feature_groups: Spec | Mapping[str, Spec],
    input: Tensor,
    optimizer: torch.optim.Optimizer,
    layers: str | Sequence[str] | Mapping[str, float] = (),
    weights: Weights = "random",
    kernels: KernelKind | None = None,
) -> Recommended:
    """Make ``model`` equivariant, let ``optimizer`` keep it so, and return what to train it with.

    This is :func:`start_equivariant`, with its demands on model and images, and then
    :func:`keep_equivariant`. Under quarter turns and flips nothing is left to learn: the objective
    runs the model on the images alone, and a loop without it does as well. Elements that resample
    are not exact, and seeing them helps: there the objective runs the model on each image under a
    random element, the identity included, with 0 where a rotated image has no pixels. ``out.g``
    says which, for targets that rotate with the image: ``group.act(y, out.g)``. Test with
    ``model(x)``.

    Not for data whose orientation matters, such as 6 and 9: a tied model cannot learn to break a
    symmetry. :class:`EquivarianceLoss` with a small weight can.

    Args:
        model: A module of Conv2d, ConvTranspose2d, Linear and layers with numbers per channel;
            frozen layers are changed too.
        group: Rotations and flips, such as ``"rot4"`` or ``"rot4xflip"``.
        feature_groups: One for all, or by the name of a layer or a module around it, ``""`` for
            the rest.
        input: Images (B, C, H, W) of a size at which the grid is exact; see :func:`doctor`.
        optimizer: One of torch.optim, made from ``model.parameters()``.
        layers: Layers to compare between an image and one transformed view, all members of the
            feature groups found in them (``action="regular"``); a mapping carries weights.
        weights: ``"random"``, or ``"project"`` for a trained model.
        kernels: ``"smooth"`` for images in all orientations, the default for random weights, or
            ``"free"`` for images that rotate by quarters only; where an element resamples, they
            are smooth anyway.

    Returns:
        The objective: call it with the model and a batch. Its ``start`` prints as a table.

    Raises:
        ValueError: If the model cannot be equivariant or kept so; the model is then as it was.

    >>> net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))
    >>> images, optimizer = torch.rand(6, 1, 9, 9), torch.optim.Adam(net.parameters())
    >>> objective = recommended(net, "rot4", feature_groups=4, input=images, optimizer=optimizer)
    >>> objective(net, images).views, objective.start.layers["3"].exact < 1e-10
    (1, True)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"recommended needs a torch.nn.Module; got a {type(model).__name__}")
    check_optimizer(optimizer, model)
    if kernels is None:
        # smooth kernels would lose more of what a trained model has learned
        kernels = "free" if weights == "project" else "smooth"
    samples = 0  # one view: the loss is 0 by construction
    if layers:
        samples = 1
    with restored_on_error(model):
        start = start_equivariant(model, group, feature_groups, input, weights, kernels)
        check_untied(model, start.untied)
        specs = _feature_groups(layers, start)
        objective = Recommended(group, layers, specs, samples=samples, action="regular")
        objective.start = start
        if layers:  # a layer that cannot be compared should be an error now, not in the first step
            _try(objective, model, input)
    keep_equivariant(start, optimizer)
    return objective


def _feature_groups(
    layers: str | Sequence[str] | Mapping[str, float], start: Start
) -> dict[str, FeatureGroups]:
    """Return the feature groups of each layer, with ``""`` for layers that did not run."""
    specs = {"": FeatureGroups.of(1)}
    for name in weights_of(layers, "layer"):
        if name in start.returned:
            specs[name] = _spec(name, start.returned[name])
    return specs


def _spec(name: str, blocks: Blocks) -> FeatureGroups:
    """Return the feature groups of a layer, from those found in its maps."""
    sizes = sizes_of(blocks)
    if sizes != sorted(set(sizes), reverse=True):
        raise ValueError(
            f"layer {name!r} concatenates maps, in feature groups {sizes_text(blocks)}, and only sizes from "
            f"large to small can be compared: name the layers whose maps it concatenates instead"
        )
    return FeatureGroups.of({size: channels // size for size, channels in blocks})


def _try(objective: Recommended, model: nn.Module, input: Tensor) -> None:
    """Run the objective on two images."""
    device = device_of(model, input.device)
    with torch.inference_mode(False), torch.no_grad(), eval_mode(model):
        objective(model, input[:2].to(device, copy=True))
