"""The recommended setting: from an ordinary network to an equivariant one and the loss that keeps it so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from ._compare import OnEmpty
from ._feature_groups import FeatureGroups, Spec
from ._groups import Group
from ._inputs import try_model
from ._loss import EquivarianceLoss
from ._regular import Blocks
from ._start import Start, Weights, start_after

__all__ = ["Recommended", "recommended"]


class Recommended(EquivarianceLoss):
    """The objective that :func:`recommended` makes."""

    start: Start
    """What became of each layer of the model; ``print`` it for a table."""


def recommended(
    model: nn.Module,
    group: Group | str,
    feature_groups: Spec | Mapping[str, Spec],
    layers: str | Sequence[str] | Mapping[str, float],
    input: Tensor,
    weights: Weights = "random",
    *,
    on_empty: OnEmpty = "error",
) -> Recommended:
    """Make ``model`` equivariant, and return the objective that keeps it so while it is trained.

    The model is changed by :func:`start_equivariant`, with all of its demands. The objective shows it whole
    orbits (``samples="all"``) and compares all members of feature groups (``action="regular"``) with weight 1
    in each of the ``layers``, or with the weights of a mapping. An image is seen once for each element of the
    group: load so many times fewer in a batch. ``weights="project"`` is for a model that is trained already.
    ``feature_groups`` may map modules to their own, with ``""`` for the rest; each of the ``layers`` is
    compared in those that its maps turn in once the model is changed. ``on_empty`` is that of
    :class:`EquivarianceLoss`.

    Frozen layers are changed too. Nets with strides need odd sizes of images, 65 and not 64; :func:`doctor`
    tells. Dropout differs between the views of an image: put it after the last of the ``layers``, or expect a
    small loss from it.

    >>> net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))
    >>> images = torch.rand(6, 1, 9, 9)
    >>> objective = recommended(net, "rot4", feature_groups=4, layers=["2", "3"], input=images)
    >>> out = objective(net, images)
    >>> out.views, out.loss.item() < 1e-10
    (4, True)
    """
    objective = Recommended(group, layers, 1, samples="all", on_empty=on_empty, action="regular")

    def trial(model: nn.Module, x: Tensor) -> None:
        try_model(model, x)
        objective(model, x)

    def settle(returned: Mapping[str, Blocks]) -> None:
        for name in filter(returned.__contains__, objective.layers):
            objective.feature_groups[name] = _spec(name, returned[name])

    objective.start = start_after(trial, settle, model, group, feature_groups, input, weights)
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
