"""The paper's objective: one forward pass over images and their views, and one extra loss.

    L  =  L_task  +  Σ over groups G of α_G  Σ over layers i of β_i  L_G^(i)              (Eq. 8)

    L_G^(i)  =  mean over images x and elements g of ‖ ĥ_i(φ_g x) - φ_g ĥ_i(x) ‖²         (Eq. 6, 7)

ĥ_i are the pooled maps of layer i (``feature_groups.py``), φ_g is what an element does to images
and maps (``groups/``), and the squared norm is averaged over valid pixels and channels, or over all
pixels (``error.py``). In place of weights one can give targets, from which the weights follow
(``multipliers.py``).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._text import type_name
from ..groups.families import group as parse_group
from ..groups.group import Group
from ..groups.members import FeatureAction, check_action, permutes_members
from .arguments import repeat_for_views
from .capture import watch
from .error import (
    Interpolation,
    check_finite_images,
    check_interpolation,
    check_pixels,
    compared_maps,
    mean_error,
)
from .feature_groups import FeatureGroups, Spec
from .layers import check_regular_layers, per_layer, weights_of
from .multipliers import Multipliers, targets_of
from .reach import check_reachable
from .result import Equivariance
from .views import distinct_groups, draw_elements, num_samples, split_by_view

__all__ = ["Equivariance", "EquivarianceLoss", "equivariance_loss"]


def equivariance_loss(
    h: Tensor,
    h_g: Tensor,
    group: Group | str,
    g: Tensor,
    normalize: bool = False,
    action: FeatureAction = "pooled",
    feature_groups: Spec | None = None,
    interpolation: Interpolation = "bilinear",
    corners: bool = False,
) -> Tensor:
    r"""Compute how far one layer is from commuting with ``group`` (Eq. 6, as a mean).

    .. math:: \operatorname{mean}\,( ĥ(φ_g^X x) - φ_g^Y ĥ(x) )^2

    It is the mean over images of each image's mean over its valid pixels and channels. Use
    :class:`EquivarianceLoss` unless your model takes several images, or your loop needs the maps.

    Args:
        h: Pooled maps of ``x``, (B, N, H, W).
        h_g: Pooled maps of ``group.act(x, g)``, of the same shape.
        group: The transformations, or their text form.
        g: Element indices (B,).
        normalize: Divide by the variance of ``h``: the relative error, which smaller maps do not
            lower.
        action: ``"pooled"`` for maps from :func:`group_pool`; ``"regular"`` for maps (B, C, H, W)
            that are not pooled, whose members each element permutes as well (for rotations a
            cyclic shift).
        feature_groups: With ``action="regular"``, how the C channels are partitioned.
        interpolation: How elements that are not exact, such as 45°, resample the maps:
            ``"bilinear"``, which smooths them, or ``"nearest"``, which keeps their variance. Give
            the same to ``group.act(x, g, mode=…)``.
        corners: Count every pixel of the maps, also those that an element brings in from outside,
            which are 0.

    Returns:
        A scalar, with gradient.

    Raises:
        ValueError: Shapes do not fit, or an element leaves no valid pixel on maps this small.

    >>> x, g = torch.rand(2, 1, 5, 5), torch.tensor([1, 3])
    >>> float(equivariance_loss(x, rotation(4).act(x, g), rotation(4), g))
    0.0
    """
    check_action(action)
    check_interpolation(interpolation)
    if (action == "regular") != (feature_groups is not None):
        raise ValueError(
            f'feature_groups belong to action="regular", which permutes their members; got action={action!r} '
            f"and feature_groups={feature_groups!r} (maps are pooled by group_pool)"
        )
    permuted = None if feature_groups is None else FeatureGroups.of(feature_groups)
    group = parse_group(group)
    return mean_error(h, h_g, group, g, permuted, normalize, interpolation=interpolation, corners=corners)


class EquivarianceLoss:
    """The paper's objective: draw elements, run the model once on ``[x, g·x]``, compare the layers.

    A sequence of groups or layers gives each weight 1; a mapping carries the weights. With all
    weights of layers 0 this is the augmented CNN, at its cost: nothing is captured.

    Do not use it to make a network *exactly* equivariant to quarter turns and flips: tied weights
    (:func:`ien.make_equivariant`) do that, and cost less. The loss is for all other
    transformations, and for networks that should be equivariant only as far as the task allows.

    An objective without a target may serve several models in several threads, but not one model in
    two threads at once: that raises a RuntimeError, because both passes run through the hooks on
    its layers. Under ``torch.compile``, compile the model's layers and call the objective
    outside: its hooks and draws are Python, which ``fullgraph=True`` refuses. :meth:`Group.act`,
    :func:`group_pool` and :func:`equivariance_loss` compile without a graph break, and work under
    ``torch.func.vmap``.

    Args:
        groups: The transformations: one group or several, or a mapping to their weights α.
        layers: Dotted names of ``model.named_modules()``, or a mapping to their weights β.
        feature_groups: One for all layers, or layer → its own, with ``""`` for the rest.
        samples: How many different elements are drawn for each image and step; ``"all"`` takes
            every one, in order (whole orbits, in which nothing is random); 0 runs the images
            alone.
        normalize: Divide each term by the variance of its layer's maps, as
            :func:`equivariance_loss`.
        action: ``"pooled"``, the paper's, compares the maximum over the members of each feature
            group; ``"regular"`` compares every member with the one that the element moves to its
            place, which keeps orientation. Scalings and custom groups permute no members: beside
            rotations or flips they are compared pooled.
        target: The relative error wanted at each layer, such as 0.05, in place of weights: one for
            all layers, or layer → its own. Each group and layer gets a multiplier, which grows
            while the error is above the target and shrinks while it is below
            (:mod:`ien.loss.multipliers`), once for each call with gradients on a model in training
            mode. Terms are relative errors then, as with ``normalize``. The multipliers belong in
            your checkpoints: :meth:`state_dict`. Do not use a target in runs of fewer than a few
            hundred steps, nor one below the floor that ``ien.measure`` prints.
        interpolation: How elements that are not exact, such as 45°, resample images and maps:
            ``"bilinear"``, which smooths both, or ``"nearest"``, as in the authors' code, which
            keeps the variance of rough maps.
        corners: Count every pixel of the maps, as the authors' code does. Those that an element
            brings in from outside are 0, so the loss then also asks for small maps at the border.

    >>> net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU())
    >>> objective = EquivarianceLoss(rotation(4), layers=["1"], feature_groups=4)
    >>> out = objective(net, torch.rand(2, 1, 9, 9), g=torch.tensor([1, 2]))
    >>> out.output.shape, out.views, list(out.terms)
    (torch.Size([4, 8, 7, 7]), 2, [('rot4', '1')])

    With a target, the loop is the same:

    >>> objective = EquivarianceLoss(rotation(4), layers=["1"], feature_groups=4, target=0.05)
    >>> loss = objective(net, torch.rand(2, 1, 9, 9)).loss  # add the loss of your task
    >>> objective.multipliers
    {('rot4', '1'): 0.01}
    """

    def __init__(
        self,
        groups: Group | str | Sequence[Group | str] | Mapping[Group | str, float],
        layers: str | Sequence[str] | Mapping[str, float],
        feature_groups: Spec | Mapping[str, Spec],
        samples: int | Literal["all"] = 1,
        normalize: bool = False,
        action: FeatureAction = "pooled",
        target: float | Mapping[str, float] | None = None,
        interpolation: Interpolation = "bilinear",
        corners: bool = False,
    ) -> None:
        check_action(action)
        check_interpolation(interpolation)
        self.groups = distinct_groups(weights_of(groups, "group"))
        self.layers: dict[str, float] = weights_of(layers, "layer")
        self.feature_groups: dict[str, FeatureGroups] = per_layer(feature_groups, self.layers)
        self.samples = {group: num_samples(group, samples) for group in self.groups}
        self.whole_orbits = samples == "all"
        self.normalize = normalize
        self.action = action
        self.interpolation: Interpolation = interpolation
        self.corners = corners
        self._actions: dict[Group, FeatureAction] = {}
        for group in self.groups:
            self._actions[group] = action if permutes_members(group) else "pooled"
            if len(group) == 1:
                message = f"group {group} has only the identity: it adds no view and no loss"
                warnings.warn(message, stacklevel=2)
        if action == "regular":
            self._check_regular()
        self._warned_of_frozen = False
        self._checked_targets = False
        self._multipliers: Multipliers | None = None
        if target is not None:
            self.normalize = True  # a target is a relative error
            self._multipliers = self._make_multipliers(target)

    @property
    def multipliers(self) -> dict[tuple[str, str], float]:
        """(group, layer) → the weight of its term in the next step; empty without targets."""
        if self._multipliers is None:
            return {}
        return dict(zip(self._multipliers.keys, self._multipliers.rounded(), strict=True))

    @property
    def targets(self) -> dict[tuple[str, str], float]:
        """(group, layer) → the relative error wanted; empty without targets."""
        if self._multipliers is None:
            return {}
        return dict(self._multipliers.targets)

    def state_dict(self) -> dict[str, Any]:
        """Return the multipliers for a checkpoint; empty without targets."""
        if self._multipliers is None:
            return {}
        return self._multipliers.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the multipliers of a checkpoint.

        Args:
            state: What :meth:`state_dict` gave, for the same groups and layers.

        Raises:
            TypeError: ``state`` is no mapping.
            ValueError: They belong to other groups or layers.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"state must be what objective.state_dict() returned; got {type_name(state)}")
        if self._multipliers is not None:
            self._multipliers.load_state_dict(state)
        elif state:
            raise ValueError("these are multipliers, but this objective has no target: give it one")

    @property
    def views(self) -> int:
        """How often the model sees each image in a step: as it is, and once for each element."""
        return 1 + sum(self.samples.values())

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        g: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Equivariance:
        """Run ``model`` once over the images and their transformed views, and compute the loss.

        Args:
            model: Any module that takes images first, and returns anything.
            x: Images (B, C, H, W).
            args: What the model takes after the images. A tensor (B, …), also inside lists, tuples
                and dicts, is repeated for the views; everything else is passed as it is. Nothing
                is transformed: put a mask into the channels of ``x`` instead.
            kwargs: What it takes by name, treated in the same way.
            g: The elements, instead of drawing them; such as the ``g`` of an earlier result.
            generator: Source of randomness; torch's global one by default.

        Returns:
            The output for all views, the loss to add, and its unweighted terms.

        Raises:
            KeyError: The model has no layer of that name.
            RuntimeError: A layer did not run once, was overwritten, or runs without gradients.
            TypeError: ``x`` is not a tensor, ``args`` not a tuple or list, or ``kwargs`` not a dict
                with names as keys.
            ValueError: A layer's channels cannot be split, an element leaves no valid pixel, the
                first maps say that a target is out of reach on their grid, or images hold NaN or
                infinity. This last check is left out on a GPU, where it would
                make every step wait: look at ``out.loss`` where you log it.

        >>> class Shifted(nn.Conv2d):
        ...     def forward(self, x, shift):
        ...         return super().forward(x) + shift[:, None, None, None]
        >>> objective = EquivarianceLoss(rotation(4), layers="", feature_groups=4)
        >>> x, shift = torch.rand(2, 1, 9, 9), torch.tensor([0.0, 1.0])
        >>> out = objective(Shifted(1, 4, 3), x, args=(shift,))
        >>> out.output.shape
        torch.Size([4, 4, 7, 7])
        """
        if not isinstance(x, Tensor):
            raise TypeError(f"x must be a tensor of images (B, C, H, W); got {type_name(x)}")
        batch_size = len(x)
        if batch_size == 0:
            raise ValueError(f"x holds no images: its shape is {tuple(x.shape)}")
        args, kwargs = repeat_for_views(args, kwargs, batch_size, self.views)
        drawn = g is None
        elements = self.sample(batch_size, generator) if g is None else torch.as_tensor(g, device="cpu")
        views = split_by_view(self.samples, elements, batch_size)
        transformed = [group.act(x, of_view, mode=self.interpolation) for group, of_view in views]
        layers = self._compared_layers
        by_layer: dict[str, dict[Group, Tensor]] = {}
        with_gradient = torch.is_grad_enabled()

        # inside the forward pass: backward then finishes each comparison next to its layer, and
        # holds less memory
        def compare(name: str, h: Tensor) -> None:
            if with_gradient and not torch.is_grad_enabled():
                raise RuntimeError(
                    f"layer {name!r} runs without gradients, so its loss could not train it: "
                    f"is it under no_grad, or in a checkpoint that needs use_reentrant=False?"
                )
            if drawn:
                self._check_all_elements(name, h)
            by_layer[name] = self._layer_terms(name, h, batch_size, views)
            if self._multipliers is not None and not self._checked_targets:
                self._check_targets(name, h[:batch_size])

        with watch(model, layers, compare) as calls:
            output = model(torch.cat([x, *transformed]), *args, **kwargs)
        for name in layers:
            calls.check(name)
            if calls.count(name) > 1:
                raise RuntimeError(
                    f"layer {name!r} ran {calls.count(name)} times in one forward pass, so it has no one "
                    f"map to compare: name the module around it, or use capture and equivariance_loss"
                )

        # L = Σ_G α_G Σ_i β_i L_G^(i)
        terms = {}
        loss = torch.zeros((), device=x.device)
        for group in self._compared_groups:
            for name in layers:
                term = by_layer[name][group]
                terms[str(group), name] = term
                if self._multipliers is None:
                    loss = loss + self.groups[group] * self.layers[name] * term.to(x.device)
        self._checked_targets = True
        check_finite_images(x, list(terms.values()))
        if self._multipliers is not None and terms:
            errors = torch.stack([term.to(x.device) for term in terms.values()])  # (K,)
            loss = self._multipliers.penalty(errors)
            if model.training and with_gradient:
                self._multipliers.update(errors.detach(), batch_size)
        if with_gradient and terms:
            self._warn_of_frozen(model, list(terms.values()))
        height, width = x.shape[-2:]
        return Equivariance(output, loss, terms, elements, self.views, batch_size, (height, width), views)

    def sample(self, batch_size: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw elements for every transformed view of a batch.

        Each image gets different elements of a group.

        Args:
            batch_size: Number of images.
            generator: Source of randomness; torch's global one by default.

        Returns:
            Element indices ((views - 1) * B,), view after view, on the CPU.
        """
        return draw_elements(self.samples, self.whole_orbits, batch_size, generator)

    def __repr__(self) -> str:
        groups = []
        for group, weight in self.groups.items():
            groups.append(f"{group}: {weight:g}")
        layers = []
        for name, weight in self.layers.items():
            layers.append(f"{name}: {weight:g} ({self.feature_groups[name]})")
        action = ""
        if self.action != "pooled":
            action = f", action={self.action!r}"
            for group in self._compared_groups:
                if self._actions[group] != self.action:
                    action += f", {group}: pooled"
        if self._multipliers is not None:
            wanted = {f"{value:g}": None for value in self.targets.values()}  # each once, in order
            action += f", target={'/'.join(wanted)}"
        if self.interpolation != "bilinear":
            action += f", interpolation={self.interpolation!r}"
        if self.corners:
            action += ", corners=True"
        return (
            f"{type(self).__name__}(groups {{{', '.join(groups)}}}, layers {{{', '.join(layers)}}}, "
            f"views={self.views}{action})"
        )

    @property
    def _compared_groups(self) -> list[Group]:
        return [group for group, alpha in self.groups.items() if alpha and self.samples[group]]

    @property
    def _compared_layers(self) -> list[str]:
        if not self._compared_groups:
            return []
        return [name for name, beta in self.layers.items() if beta]

    def _make_multipliers(self, target: float | Mapping[str, float]) -> Multipliers:
        """One multiplier for each group and layer that is compared."""
        for kind, weights in (("group", self.groups), ("layer", self.layers)):
            for name, weight in weights.items():
                if weight not in (0, 1):
                    raise ValueError(
                        f"target takes the place of weights, so list {kind}s without them (0 leaves one "
                        f"out); got weight {weight:g} for {kind} {str(name)!r}"
                    )
        wanted = targets_of(target, [name for name, weight in self.layers.items() if weight])
        targets = {}
        for group in self._compared_groups:
            for name, value in wanted.items():
                targets[str(group), name] = value
        return Multipliers(targets)

    def _layer_terms(
        self, name: str, h: Tensor, batch_size: int, views: list[tuple[Group, Tensor]]
    ) -> dict[Group, Tensor]:
        """L_G^(i) of layer ``name`` for each compared group, from its maps ``h`` of all views."""
        if len(h) != self.views * batch_size:
            raise ValueError(
                f"layer {name!r} returned {len(h)} maps for {self.views} views of {batch_size} images: "
                f"its batch must be that of the input; use capture and equivariance_loss for anything else"
            )
        spec = self.feature_groups[name]
        maps: dict[FeatureAction, tuple[Tensor, ...]] = {}  # of each view, (B, N, H, W)
        terms = {}
        for group in self._compared_groups:
            action = self._actions[group]
            if action not in maps:
                maps[action] = compared_maps(name, h, spec, action).split(batch_size)
            original, *transformed = maps[action]
            permuted = spec if action == "regular" else None

            errors = []
            for (view_group, g), h_g in zip(views, transformed, strict=True):
                if view_group == group:
                    where = f"layer {name!r}"
                    error = mean_error(
                        original,
                        h_g,
                        group,
                        g,
                        permuted,
                        self.normalize,
                        where,
                        self.interpolation,
                        self.corners,
                    )
                    errors.append(error)
            if len(errors) == 1:  # the usual case, spared a few small operations in each step
                terms[group] = errors[0]
                continue
            # the mean over the views of this group; not .mean(), which rounds differently
            share = 1 / len(errors)
            terms[group] = torch.stack([error * share for error in errors]).sum()
        return terms

    def _warn_of_frozen(self, model: nn.Module, terms: list[Tensor]) -> None:
        """Warn, once, if no gradient can reach any layer that is compared."""
        reached = any(term.requires_grad for term in terms)
        has_weights = any(True for _ in model.parameters())
        if reached or not has_weights or self._warned_of_frozen:
            return
        self._warned_of_frozen = True
        layers = ", ".join(repr(name) for name in self._compared_layers)
        message = (
            f"the equivariance loss trains nothing: layers {layers} and all before them are frozen; "
            f"unfreeze one of these, or name layers that come after trainable ones"
        )
        warnings.warn(message, stacklevel=3)

    def _check_all_elements(self, name: str, h: Tensor) -> None:
        """Fail in the first step, not in the one that draws an element without valid pixels."""
        if self.corners:
            return
        for group in self._compared_groups:
            check_pixels(h, group, range(1, len(group)), f"layer {name!r}")

    def _check_targets(self, name: str, h: Tensor) -> None:
        """Fail in the first step if the grid alone causes errors far above a layer's target."""
        if self.interpolation != "bilinear":
            return  # floors are those of bilinear resampling
        for group in self._compared_groups:
            maps = compared_maps(name, h.detach(), self.feature_groups[name], self._actions[group])
            check_reachable(name, maps, group, self.targets[str(group), name])

    def _check_regular(self) -> None:
        """Check that each group can permute the members of the feature groups of each layer."""
        compared = self._compared_groups
        groups = [group for group in compared if self._actions[group] == "regular"]
        if not groups:
            groups = compared  # none permutes members: the check of the first one says why
        feature_groups = {name: self.feature_groups[name] for name in self._compared_layers}
        for group in groups:
            check_regular_layers(group, feature_groups)
