"""What the objective returns: the loss, and the targets of all views for the loss of the task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from .._text import nearest
from ..groups.families import rotation
from ..groups.group import Group
from .modules import map_leaves, tensors_in

__all__ = ["Equivariance", "Kind"]

Kind = Literal["mask", "boxes", "points", "vectors", "angles", "label"]
"""What a target is, which says how an element transforms it; a label stays as it is."""


@dataclass(frozen=True, repr=False)
class Equivariance:
    """What one call of :class:`EquivarianceLoss` returns."""

    output: Any
    """What the model returned for all views, those of the original images first."""
    loss: Tensor
    """Σ α β term over groups and layers: add it to the task loss of the output. With targets it is
    Σ λ (term - target), which is negative below them."""
    terms: dict[tuple[str, str], Tensor]
    """(group, layer) → the unweighted L_G of each layer with a positive weight, with gradient."""
    g: Tensor
    """The elements drawn, one for each transformed image: ((views - 1) * B,), view after view."""
    views: int
    """How many images the model saw for each image of the batch: itself, and one per element."""
    batch_size: int
    size: tuple[int, int]
    """Height and width of the images."""
    transformed: list[tuple[Group, Tensor]] = field(default_factory=list)
    """The group and the elements (B,) of each view after the first."""

    def __repr__(self) -> str:
        terms = []
        for (group, layer), term in self.terms.items():
            terms.append(f"{group} {layer}: {term.item():.3g}")
        return f"Equivariance(loss={self.loss.item():.3g}, views={self.views}, terms {{{', '.join(terms)}}})"

    def repeat(self, y: Any) -> Any:
        """Repeat labels for all views.

        Do not use it for targets that rotate with the image: :meth:`targets` transforms them.

        Args:
            y: A tensor (B, …), or a tuple, list or dict of them.

        Returns:
            The same with tensors (views * B, …).

        Raises:
            ValueError: A tensor has no entry for each image, or looks like a mask or another map.
        """

        def repeated(value: Any) -> Tensor:
            value = self._checked(value, "repeat")
            if self.transformed and value.ndim >= 3:
                self._refuse_maps(value)
            return value.repeat(self.views, *[1] * (value.ndim - 1))  # (views * B, …)

        return map_leaves(y, repeated)

    def targets(self, y: Any, kind: Kind, ignore: float = 255) -> Any:
        """Transform targets for all views, as their images were.

        Do not use it with ``custom`` groups, whose action on targets nobody knows, unless the
        targets are labels.

        Args:
            y: A tensor (B, …), or a tuple, list or dict of them.
            kind: What they are: ``"mask"`` (B, H, W); ``"boxes"`` (B, …, 4), x1 y1 x2 y2 in pixels;
                ``"points"`` (B, …, 2), x y in pixels; ``"vectors"`` (B, …, 2), dx dy with dy down;
                ``"angles"`` (B, …), in degrees; ``"label"`` for what stays as it is. The methods
                ``act_on_masks`` and so on of :class:`Group` say more.
            ignore: What the pixels of masks get where nothing is known; tell your loss to skip it.

        Returns:
            The same with tensors (views * B, …), those of the original images first.

        Raises:
            ValueError: There is no such kind, or a tensor does not fit it.

        >>> net = nn.Conv2d(1, 3, 1)
        >>> objective = ien.EquivarianceLoss("rot4", layers="", feature_groups=1)
        >>> images, masks = torch.rand(2, 1, 8, 8), torch.randint(3, (2, 8, 8))
        >>> out = objective(net, images)
        >>> y = out.targets(masks, kind="mask")
        >>> loss = nn.functional.cross_entropy(out.output, y, ignore_index=255) + out.loss
        >>> y.shape
        torch.Size([4, 8, 8])
        """
        if kind not in get_args(Kind):
            raise ValueError(f"there is no kind of targets {kind!r}; {nearest(str(kind), get_args(Kind))}")

        def transformed(value: Any) -> Tensor:
            value = self._checked(value, "targets")
            if kind == "label":
                return value.repeat(self.views, *[1] * (value.ndim - 1))  # (views * B, …)
            identity = torch.zeros(self.batch_size, dtype=torch.int64, device="cpu")
            parts = []
            for group, g in [(rotation(1), identity), *self.transformed]:
                parts.append(self._act(group, kind, ignore)(value, g))
            return torch.cat(parts)  # (views * B, …)

        return map_leaves(y, transformed)

    def _refuse_maps(self, value: Tensor) -> None:
        """Raise a ValueError if ``value`` is as large as the images, or as maps of the output."""
        size = tuple(value.shape[-2:])
        like = ""
        if size == self.size:
            like = "images"
        for tensor in tensors_in(self.output):
            # 1×1 maps are numbers, which do not rotate
            if not like and tensor.ndim == 4 and size == tensor.shape[-2:] and size != (1, 1):
                like = "outputs"
        if like:
            height, width = size
            raise ValueError(
                f"targets {tuple(value.shape)} look like maps of the {height}×{width} {like} and have to "
                f'rotate with them: use out.targets(y, kind="mask"), or kind="label" to repeat them as '
                f"they are"
            )

    def _act(self, group: Group, kind: Kind, ignore: float) -> Callable[[Tensor, Tensor], Tensor]:
        """The action of ``group`` on targets of this kind, in images of this size."""
        actions: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
            "mask": lambda y, g: group.act_on_masks(y, g, ignore),
            "boxes": lambda y, g: group.act_on_boxes(y, g, self.size),
            "points": lambda y, g: group.act_on_points(y, g, self.size),
            "vectors": group.act_on_vectors,
            "angles": group.act_on_angles,
        }
        return actions[kind]

    def _checked(self, value: Any, method: str) -> Tensor:
        """Check that ``value`` is a tensor with an entry for each image."""
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{method} takes a tensor, or a tuple, list or dict of tensors; got {type(value).__name__}"
            )
        if value.ndim == 0 or len(value) != self.batch_size:
            raise ValueError(
                f"{method} needs tensors with an entry for each of the {self.batch_size} images; "
                f"got {tuple(value.shape)}"
            )
        return value
