"""The table of a comparison: what each version of a model did, and how that is printed."""

from __future__ import annotations

from dataclasses import dataclass, field

from .._text import columns, html_table, number
from ..groups.group import Group

__all__ = ["Comparison", "Version"]


@dataclass
class Version:
    """What one version of a model does with the images; all shares are from 0 to 1.

    Models that name classes have shares; all others have errors, where 0 is equivariant and 2 or
    more unrelated.
    """

    agreement: dict[str, float] = field(default_factory=dict)
    """Element → the share of images that this version predicts as it does upright."""
    all_agree: float = 0.0
    """The share of images (or pixels) predicted alike under all elements."""
    like_original: float = 0.0
    """The share of upright images that are predicted as by the first version."""
    accuracy: dict[str, float] = field(default_factory=dict)
    """Element → the share of images predicted right; empty without labels."""
    errors: dict[str, dict[str, float]] = field(default_factory=dict)
    """Key of what is returned ("" if it has none) → element → relative error."""
    differences: dict[str, float] = field(default_factory=dict)
    """Key → relative difference from what the first version returns for upright images."""
    cost: float = 1.0
    """The time of a forward pass, in those of the first version."""


@dataclass
class Comparison:
    """What :func:`compare` returns; prints as a table."""

    group: Group
    num_images: int
    versions: dict[str, Version]

    def __str__(self) -> str:
        return "\n".join([self._title(), *columns(self.rows()), *self._notes()])

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self.versions)} under {self.group}, {self._count()}>"

    def _repr_html_(self) -> str:
        return html_table(self._title(), self.rows(), self._notes())

    def rows(self) -> list[list[str]]:
        """Return the table as text: a column for each version."""
        versions = list(self.versions.values())
        labels = self.group.labels
        rows = [["", *self.versions]]
        if versions[0].errors:
            rows += self._rows_of_errors()
        else:
            rows.append(["same answer under all", *[f"{version.all_agree:.1%}" for version in versions]])
            for label in labels[1:]:
                shares = [f"{version.agreement[label]:.1%}" for version in versions]
                rows.append([f"same answer at {label}", *shares])
            shares = [f"{version.like_original:.1%}" for version in versions]
            rows.append(["as the original, upright", *shares])
        if all(version.accuracy for version in versions):
            rows.append(["right upright", *[f"{version.accuracy[labels[0]]:.1%}" for version in versions]])
            for label in labels[1:]:
                shares = [f"{version.accuracy[label]:.1%}" for version in versions]
                rows.append([f"right at {label}", *shares])
        rows.append(["time of a pass", *[f"{version.cost:.2f}" for version in versions]])
        return rows

    def _rows_of_errors(self) -> list[list[str]]:
        versions = list(self.versions.values())
        rows = []
        for key in versions[0].errors:
            of_key = f" of {key}" if key else ""
            for label in self.group.labels[1:]:
                errors = [number(version.errors[key][label]) for version in versions]
                rows.append([f"error{of_key} at {label}", *errors])
            differences = [number(version.differences[key]) for version in versions]
            rows.append([f"difference{of_key} from the original, upright", *differences])
        return rows

    def _title(self) -> str:
        return f"{self._count()} under {self.group}"

    def _count(self) -> str:
        return "1 image" if self.num_images == 1 else f"{self.num_images} images"

    def _notes(self) -> list[str]:
        if any(version.errors for version in self.versions.values()):
            return ["errors are shares of the variance between images: 0 is equivariant, 2 or more unrelated"]
        return []
