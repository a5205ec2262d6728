"""The equivariance loss: from a model and images to the paper's extra loss term, in one forward pass."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..groups.group import Group, random_order
from ..groups.group import group as parse_group
from ..groups.members import FeatureAction, check_action, check_sizes, permutes
from .capture import capture
from .error import OnEmpty, check_on_empty, check_pixels, compared_maps, mean_error
from .feature_groups import FeatureGroups, Spec, per_layer
from .layers import weights_of

__all__ = ["Equivariance", "EquivarianceLoss", "equivariance_loss"]


def equivariance_loss(
    h: Tensor,
    h_g: Tensor,
    group: Group | str,
    g: Tensor,
    normalize: bool = False,
    on_empty: OnEmpty = "error",
    action: FeatureAction = "pooled",
    feature_groups: Spec | None = None,
) -> Tensor:
    r"""How far one layer is from commuting with ``group`` (Eq. 6, averaged instead of summed).

    .. math:: \operatorname{mean}\,( ĥ(φ_g^X x) - φ_g^Y ĥ(x) )^2

    ``h`` are pooled maps of ``x`` and ``h_g`` those of ``group.act(x, g)``, both (B, N, H, W); ``g`` is (B,).
    It is the mean over images of each image's mean over its valid pixels and channels. ``normalize=True``
    divides by the variance of ``h``, which gives the relative error: smaller maps do not lower it. An element
    that leaves no valid pixel on so small a map is an error; ``on_empty="skip"`` leaves its images out, with
    a warning.
    ``action="regular"`` takes maps that are not pooled, (B, C, H, W), and lets each element permute the
    members of their ``feature_groups`` as well: for rotations a cyclic shift.

    >>> x, g = torch.rand(2, 1, 5, 5), torch.tensor([1, 3])
    >>> float(equivariance_loss(x, rotation(4).act(x, g), rotation(4), g))
    0.0
    """
    check_action(action)
    check_on_empty(on_empty)
    if (action == "regular") != (feature_groups is not None):
        raise ValueError(
            f'feature_groups belong to action="regular", which permutes their members; got action={action!r} '
            f"and feature_groups={feature_groups!r} (maps are pooled by group_pool)"
        )
    spec = None if feature_groups is None else FeatureGroups.of(feature_groups)
    return mean_error(h, h_g, parse_group(group), g, normalize, on_empty, "this layer", spec)[0]


@dataclass(frozen=True, repr=False)
class Equivariance:
    """What one call of :class:`EquivarianceLoss` gives."""

    output: Any
    """What the model returned for all views, those of the originals first."""
    loss: Tensor
    """Σ α β term over groups and layers: add it to the task loss of the output."""
    terms: dict[tuple[str, str], Tensor]
    """Each unweighted L_G of a layer with a positive weight, by (group, layer), with gradient."""
    g: Tensor
    """The elements drawn, one for each transformed image: ((views - 1) * B,) in the order of the views.

    Of a :class:`Recommended` that shows images under elements in their place, (B,).
    """
    views: int
    """How often each image is seen: once as it is, or in its place, and once for each further element."""
    batch_size: int

    def __repr__(self) -> str:
        terms = ", ".join(
            f"{group} {layer}: {term.item():.3g}" for (group, layer), term in self.terms.items()
        )
        return f"Equivariance(loss={self.loss.item():.3g}, views={self.views}, terms {{{terms}}})"

    def repeat(self, y: Any) -> Any:
        """Labels for all views: a tensor (B, …), or a tuple, list or dict of them, becomes (views * B, …)."""
        if isinstance(y, Tensor):
            if y.ndim == 0 or len(y) != self.batch_size:
                raise ValueError(
                    f"repeat needs tensors with a row for each of the {self.batch_size} images; "
                    f"got {tuple(y.shape)}"
                )
            return y.repeat(self.views, *[1] * (y.ndim - 1))
        if isinstance(y, dict):
            return {key: self.repeat(value) for key, value in y.items()}
        if isinstance(y, tuple | list):
            parts = [self.repeat(value) for value in y]
            return type(y)(*parts) if hasattr(y, "_fields") else type(y)(parts)
        raise TypeError(f"repeat takes a tensor, or a tuple, list or dict of tensors; got {type(y).__name__}")


class EquivarianceLoss:
    """The paper's objective: draw elements, run the model once on ``[x, g·x]``, compare the layers (Eq. 7–8).

    A sequence of groups or layers gives each weight 1; a mapping carries the weights, α for groups and β for
    layers. Layers with weight 0 are not captured: with all of them 0 this is the augmented CNN, at its cost.
    ``feature_groups`` is one for all, or maps layers to their own, ``""`` for the rest.
    ``samples`` different elements are drawn for each image and step; ``"all"`` takes every one, in order:
    whole orbits, in which nothing is random; 0 none, so that the model runs on the images alone and there is
    no loss. ``stop_gradient`` holds the maps of the originals fixed.
    ``normalize`` and ``on_empty`` are those of :func:`equivariance_loss`.
    ``action="pooled"``, the paper's, compares the maximum over the members of each feature group;
    ``"regular"`` all members, each with the one that the element moves to its place, which keeps orientation.
    Scalings and custom groups move no member: beside rotations or flips they are then compared pooled.

    >>> net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU())
    >>> objective = EquivarianceLoss(rotation(4), layers=["1"], feature_groups=4)
    >>> out = objective(net, torch.rand(2, 1, 9, 9), g=torch.tensor([1, 2]))
    >>> out.output.shape, out.views, list(out.terms)
    (torch.Size([4, 8, 7, 7]), 2, [('rot4', '1')])
    """

    def __init__(
        self,
        groups: Group | str | Sequence[Group | str] | Mapping[Group | str, float],
        layers: str | Sequence[str] | Mapping[str, float],
        feature_groups: Spec | Mapping[str, Spec],
        samples: int | Literal["all"] = 1,
        normalize: bool = False,
        stop_gradient: bool = False,
        on_empty: OnEmpty = "error",
        action: FeatureAction = "pooled",
    ) -> None:
        weights = weights_of(groups, "group", (str, Group))
        self.groups = {parse_group(key): weight for key, weight in weights.items()}
        self.layers: dict[str, float] = weights_of(layers, "layer")
        self.feature_groups: dict[str, FeatureGroups] = per_layer(feature_groups, self.layers)
        self.samples = {group: _num_samples(group, samples) for group in self.groups}
        self.whole_orbits = samples == "all"
        for group in self.groups:
            if len(group) == 1:
                message = f"group {group} has one element, the identity: it adds no view and no loss"
                warnings.warn(message, stacklevel=2)
        self.normalize = normalize
        self.stop_gradient = stop_gradient
        self.on_empty = on_empty
        check_on_empty(on_empty)
        if len({str(group) for group in self.groups}) < len(weights):
            raise ValueError(f"two of the groups {', '.join(map(str, weights))} are equal, or in name")
        check_action(action)
        self.action = action
        self._actions: dict[Group, FeatureAction] = {
            g: action if permutes(g) else "pooled" for g in self.groups
        }
        if action == "regular":
            groups = self._compared_groups
            for group in [group for group in groups if self._actions[group] == action] or groups:  # one must
                check_sizes(group, {name: self.feature_groups[name] for name in self._compared_layers})

    @property
    def views(self) -> int:
        return 1 + sum(self.samples.values())

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        *,
        g: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Equivariance:
        """One forward pass of ``model`` over ``x`` (B, C, H, W) and its transformed views, with the loss.

        ``g`` fixes the elements instead of drawing them, as in the ``g`` of an earlier result.
        """
        batch_size = len(x)
        if batch_size == 0:
            raise ValueError(f"x holds no images: its shape is {tuple(x.shape)}")
        foresee = g is None and self.on_empty == "error"
        g = self.sample(batch_size, generator) if g is None else torch.as_tensor(g, device="cpu")
        if g.shape != ((self.views - 1) * batch_size,):
            none = ": leave it out, as this objective draws none" if self.views == 1 else ""
            raise ValueError(
                f"g must hold an element for each transformed image, ({(self.views - 1) * batch_size},) for "
                f"{self.views} views of {batch_size} images; got {tuple(g.shape)}{none}"
            )
        of_view = [group for group, samples in self.samples.items() for _ in range(samples)]
        drawn = list(zip(of_view, g.split(batch_size), strict=True)) if of_view else []
        stacked = torch.cat([x, *(group.act(x, elements) for group, elements in drawn)])
        groups, layers = self._compared_groups, self._compared_layers
        with_gradient = torch.is_grad_enabled()

        def compare(name: str, h: Tensor) -> Tensor:
            if with_gradient and not torch.is_grad_enabled():
                raise RuntimeError(
                    f"layer {name!r} runs without gradients, so that its loss could not train it: "
                    f"is it under no_grad, or in a checkpoint that needs use_reentrant=False?"
                )
            return self._compare(name, h, groups, drawn, foresee)

        # compared inside the forward pass, so that backward does it next to the layer and holds less memory
        with capture(model, layers, compare) as compared:
            output = model(stacked)
        terms = {(str(group), name): compared[name][k] for k, group in enumerate(groups) for name in layers}
        loss = torch.zeros((), device=x.device)
        for group in groups:
            for name in layers:
                loss = loss + self.groups[group] * self.layers[name] * terms[str(group), name].to(x.device)
        return Equivariance(output, loss, terms, g, self.views, batch_size)

    def sample(self, batch_size: int, generator: torch.Generator | None = None) -> Tensor:
        """Elements for every transformed view of a batch: each image gets different ones of a group."""
        drawn: list[Tensor] = []
        for group, samples in self.samples.items():
            if self.whole_orbits:
                drawn += [torch.full((batch_size,), i, device="cpu") for i in range(1, len(group))]
            if self.whole_orbits or not samples:
                continue
            first = group.sample(batch_size, generator=generator)
            others = len(group) - 1
            # further draws are the first one shifted: different for each image, and in runs as well
            shifts = random_order(others - 1, generator)[: samples - 1] + 1
            drawn += [(first - 1 + shift) % others + 1 for shift in [0, *shifts.tolist()]]
        return torch.cat(drawn) if drawn else torch.zeros(0, dtype=torch.int64, device="cpu")

    @property
    def _compared_groups(self) -> list[Group]:
        return [group for group, alpha in self.groups.items() if alpha and self.samples[group]]

    @property
    def _compared_layers(self) -> list[str]:
        return [name for name, beta in self.layers.items() if beta and self._compared_groups]

    def _compare(
        self, name: str, h: Tensor, groups: list[Group], drawn: list[tuple[Group, Tensor]], foresee: bool
    ) -> Tensor:
        """L_G of one layer for each of the groups; ``drawn`` are the group and the elements of each view."""
        spec = self.feature_groups[name]
        batch_size = len(drawn[0][1])
        if len(h) != self.views * batch_size:
            raise ValueError(
                f"layer {name!r} returned {len(h)} maps for {self.views} views of {batch_size} images: "
                f"its batch must be that of the input; use capture and equivariance_loss for anything else"
            )
        actions = dict.fromkeys(self._actions[group] for group in groups)
        views = {action: compared_maps(name, h, spec, action).split(batch_size) for action in actions}
        terms = []
        for group in groups:
            original, *transformed = views[self._actions[group]]
            original = original.detach() if self.stop_gradient else original
            permuted = spec if self._actions[group] == "regular" else None
            settings: Any = (self.normalize, self.on_empty, f"layer {name!r}", permuted)
            if foresee:  # an error now, not only in the step that draws such an element
                check_pixels(h, group, range(1, len(group)), f"layer {name!r}")
            losses = [
                mean_error(original, h_g, group, elements, *settings)
                for (of, elements), h_g in zip(drawn, transformed, strict=True)
                if of == group
            ]
            images = sum(count for _, count in losses)
            terms.append(torch.stack([loss * (count / max(images, 1)) for loss, count in losses]).sum())
        return torch.stack(terms)

    def __repr__(self) -> str:
        groups = ", ".join(f"{group}: {weight:g}" for group, weight in self.groups.items())
        layers = ", ".join(
            f"{name}: {weight:g} ({self.feature_groups[name]})" for name, weight in self.layers.items()
        )
        pooled = [f", {g}: pooled" for g in self._compared_groups if self._actions[g] != self.action]
        action = "" if self.action == "pooled" else f", action={self.action!r}{''.join(pooled)}"
        return f"{type(self).__name__}(groups {{{groups}}}, layers {{{layers}}}, views={self.views}{action})"


def _num_samples(group: Group, samples: int | Literal["all"]) -> int:
    others = len(group) - 1
    if others == 0:
        return 0
    if samples == "all":
        return others
    if not isinstance(samples, int) or not 0 <= samples <= others:
        raise ValueError(
            f'samples, the same for all groups, must be 0 to {others} for {group}, or "all"; got {samples!r}'
        )
    return samples
