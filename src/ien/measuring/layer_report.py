"""What is measured of one layer, of one element, and of the model's predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .._text import number
from .intervals import Interval
from .sums import mean_of_known

__all__ = ["ElementReport", "LayerReport", "OutputElement", "OutputReport"]

MAX_UNMEASURED_ELEMENTS = 4
"""How many elements without a valid pixel a warning names."""


@dataclass(frozen=True)
class ElementReport:
    """How far one layer is from being equivariant to one element of the group.

    ``report.layers["layer1"].elements["45°"]`` is one of these. All errors are NaN if the map is so
    small that the element leaves no valid pixel to compare.
    """

    raw: float
    """The paper's L_G for this element: the mean squared difference of the maps."""
    relative: float
    """``raw`` divided by the variance of the maps: 0 is equivariant, about 2 is unrelated."""
    interval: Interval
    """95 % confidence interval of ``relative``, over images."""
    floor: float | None
    """The relative error that the geometry alone causes, whatever the weights.

    For quarter turns and flips: the error of the same network with every kernel averaged over them.
    For other elements: the error of transforming the layer's map and back, with factors above 1.2
    replaced by 1.2. None for custom transformations and after ``measure(..., floors=False)``; NaN
    if the map is too small to say.
    """
    exact: bool
    """Whether the element only permutes pixels: a quarter turn, a flip or both."""
    degrees: float | None
    """The angle, if the element is a rotation."""
    factor: float | None = None
    """The factor, if the element is a scaling; below 1 the content shrinks."""


@dataclass(frozen=True)
class LayerReport:
    """How far one layer is from being equivariant to the group.

    ``report.layers["layer1"]`` is one of these. Errors are means over images and over all elements
    except the identity and those that leave no valid pixel to compare.
    """

    raw: float
    """The paper's L_G: the mean squared difference of the maps.

    It grows with the scale of the features, so do not compare it between layers or models.
    """
    relative: float
    """``raw`` divided by ``variance``: 0 is equivariant, about 2 is unrelated. Compare this one."""
    interval: Interval
    """95 % confidence interval of ``relative``, over images."""
    floor: float | None
    """The mean of the elements' floors; see :class:`ElementReport`. None if no element has one."""
    variance: float
    """The variance of the maps of the original images, over images, channels and pixels."""
    diversity: float | None
    """How different the channels of a feature group are, on average over feature groups.

    0 if they are equal, about 1 if they are unrelated, None if all feature groups have size 1.
    """
    collapsed: tuple[int, ...]
    """Indices of the feature groups whose channels have become (nearly) equal."""
    num_groups: int
    """How many feature groups the layer has."""
    constant: bool
    """Whether no channel varies over images and pixels; an error of 0 then says nothing."""
    size: tuple[int, int]
    """Height and width of the maps."""
    elements: dict[str, ElementReport]
    """The same for each element by its label, such as ``"90°"``, without the identity."""

    def __repr__(self) -> str:
        size = "×".join(map(str, self.size))
        errors = f"relative {number(self.relative)}, floor {number(self.floor)}"
        return f"LayerReport({errors}, map {size}, {len(self.elements)} elements)"

    @property
    def per_element(self) -> dict[str, float]:
        """The relative error of each element, by its label."""
        return {label: element.relative for label, element in self.elements.items()}

    @property
    def exact(self) -> float | None:
        """The mean relative error of quarter turns and flips, which only permute pixels."""
        return self._mean_error(exact=True)

    @property
    def between(self) -> float | None:
        """The mean relative error of all other elements, which resample."""
        return self._mean_error(exact=False)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons not to take the numbers of this layer at face value."""
        found = []
        if self.constant:
            found.append("its maps are constant: an error of 0 says nothing")
        elif self.collapsed:
            count = f"{len(self.collapsed)} of {self.num_groups} feature groups"
            found.append(f"{count} have collapsed: their members are nearly equal")

        unmeasured = []
        for label, element in self.elements.items():
            if math.isnan(element.relative):
                unmeasured.append(label)
        if unmeasured:
            listed = unmeasured[:MAX_UNMEASURED_ELEMENTS]
            if len(unmeasured) > MAX_UNMEASURED_ELEMENTS:
                listed.append("…")
            height, width = self.size
            found.append(
                f"{len(unmeasured)} of {len(self.elements)} elements leave no valid pixel of "
                f"{height}×{width}, and are left out: {', '.join(listed)}"
            )
        return tuple(found)

    def _mean_error(self, exact: bool) -> float | None:
        errors = []
        for element in self.elements.values():
            if element.exact == exact:
                errors.append(element.relative)
        return mean_of_known(errors)


@dataclass(frozen=True)
class OutputElement:
    """What one element of the group does to the output of a classifier."""

    logit_error: float
    """The mean squared change of the scores divided by their variance."""
    flip_rate: float
    """The share of images whose predicted class changes."""
    interval: Interval
    """95 % confidence interval of ``flip_rate``, over images."""
    accuracy: float | None
    """The share of images that are classified correctly; None without labels."""
    exact: bool
    """Whether the element only permutes pixels: a quarter turn, a flip or both."""
    degrees: float | None
    """The angle, if the element is a rotation."""
    factor: float | None = None
    """The factor, if the element is a scaling."""


@dataclass(frozen=True)
class OutputReport:
    """What the group does to the output of a classifier.

    ``report.output`` is one of these. Numbers are means over all elements except the identity.
    """

    logit_error: float
    """The mean squared change of the scores divided by their variance."""
    flip_rate: float
    """The share of predictions that change."""
    elements: dict[str, OutputElement]
    """The same for each element by its label, such as ``"90°"``, without the identity."""
    agreement: float = math.nan
    """The share of images whose predicted class is the same under all elements."""

    def __repr__(self) -> str:
        changed = f"{self.flip_rate:.2%} of the predictions change"
        return f"OutputReport({changed}, agreement {self.agreement:.2%}, {len(self.elements)} elements)"
