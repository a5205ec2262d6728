"""Exported: what export wrote, and how it compares with the model, as a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._text import columns, html_table, markdown_table, number
from .check import Version
from .formats import ONNX, PROGRAM

__all__ = ["INT8", "Exported"]

INT8 = "int8"
"""What the version in int8 is called in the table."""


@dataclass(frozen=True)
class Exported:
    """What :func:`ien.export` wrote, and how it compares with the model; print it for a table."""

    path: Path
    format: str
    """ONNX, torch.export or safetensors."""
    opset: int | None
    """The version of ONNX's operators."""
    size: tuple[int, int, int]
    """Channels, height and width of the images that it takes."""
    any_size: bool
    """Whether height and width may be others."""
    outputs: tuple[tuple[int, ...], ...]
    """The shape of each tensor that it returns for an image."""
    group: str | None
    num_images: int
    random_difference: float
    """As ``Version.difference``, on images of random numbers in batches of other sizes."""
    versions: dict[str, Version]
    """The model, then each runtime that ran the file; the int8 file last."""
    runtimes: dict[str, str]
    """Runtime → its version."""
    unread: dict[str, str]
    """A runtime that is installed, and not needed, but cannot read the file → what it says."""
    megabytes: float
    calibrated_on: int | None = None
    """How many images int8 was calibrated with; None for a float file."""
    code: str | None = None
    """What builds the model for a file of weights, net.py:build; None if ``ien.load`` knows."""
    notes: tuple[str, ...] = ()
    """What the command says besides: which weights it took, that they are random, …"""

    @property
    def difference(self) -> float:
        """The largest difference between the model and its float file, in any runtime."""
        largest = self.random_difference
        for name, version in self.versions.items():
            if name != INT8:
                largest = max(largest, version.difference)
        return largest

    def __str__(self) -> str:
        return "\n".join([self._title(), *columns(self.rows()), *self._notes()])

    def __repr__(self) -> str:
        return f"<Exported {self.path}, {self.format}, largest difference {number(self.difference)}>"

    def _repr_html_(self) -> str:
        return html_table(self._title(), self.rows(), self._notes())

    def rows(self) -> list[list[str]]:
        """Return the table as text: a column for the model and one for each version of the file."""
        versions = list(self.versions.values())
        rows = [["", *self.versions]]
        rows.append(["largest difference", *[number(version.difference) for version in versions]])
        shares = {
            "same class as the model": [version.same for version in versions],
            "right": [version.accuracy for version in versions],
            f"right under {self.group}": [version.accuracy_under_group for version in versions],
            f"same class under {self.group}": [version.agreement for version in versions],
        }
        for label, values in shares.items():
            if values[0] is not None and not (self.group is None and "under" in label):
                rows.append([label, *[f"{value:.1%}" for value in values]])
        for element in versions[0].errors:
            rows.append([f"error at {element}", *[number(version.errors[element]) for version in versions]])
        rows.append(["time of a pass", *[f"{version.cost:.2f}" for version in versions]])
        return rows

    def to_markdown(self) -> str:
        """Return the table, what it was measured on and how to run the file, for a model card."""
        notes = "; ".join([*self._notes(), *self.notes])
        lines = [
            f"{self._title()}.",
            "",
            markdown_table(self.rows()),
            "",
            f"{notes}.",
            "",
            self._how_to_run(),
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON can hold it."""
        content: dict[str, Any] = dict(vars(self))
        content["path"] = str(self.path)
        content["difference"] = self.difference
        content["versions"] = {name: dict(vars(version)) for name, version in self.versions.items()}
        return content

    def _title(self) -> str:
        opset = "" if self.opset is None else f" opset {self.opset}"
        kind = f"{self.format}{opset}"
        if INT8 in self.versions:
            kind += " int8"
        channels, height, width = self.size
        sides = "height, width" if self.any_size else f"{height}, {width}"
        shapes = []
        for shape in self.outputs:
            shapes.append(f"({', '.join(['batch', *map(str, shape)])})")
        if self.any_size:
            shapes = [f"{shape} at {height}×{width}" for shape in shapes]
        return (
            f"{self.path}: {kind}, {self.megabytes:.2g} MB, images (batch, {channels}, {sides}) → "
            f"{', '.join(shapes)}"
        )

    def _how_to_run(self) -> str:
        """Return code that runs the file."""
        name = self.path.name
        code = f'import ien\n\nmodel = ien.load("{name}")'
        if self.code is not None:
            file, _, function = self.code.rpartition(":")
            module = file.removesuffix(".py")
            code = (
                f"import ien\nfrom {module} import {function}  # the function that makes the model\n\n"
                f'model = ien.load("{name}", build={function})'
            )
        if self.format == ONNX.name:
            returned = "(scores,)"
            if len(self.outputs) > 1:
                returned = ", ".join(f"output{i}" for i in range(len(self.outputs)))
            code = (
                f'import onnxruntime\n\nsession = onnxruntime.InferenceSession("{name}")\n'
                f'{returned} = session.run(None, {{"images": images}})'
            )
        if self.format == PROGRAM.name:
            code = f'import torch\n\nmodel = torch.export.load("{name}").module()'
        return f"```python\n{code}\n```"

    def _notes(self) -> list[str]:
        ran = ", ".join(f"{name} {version}" for name, version in self.runtimes.items())
        under = "" if self.group is None else f" under {self.group}"
        notes = [
            f"{self.num_images} images{under}, run by {ran}; on random numbers the largest difference is "
            f"{number(self.random_difference)}",
            "differences are shares of the largest output; an error of 0 is equivariant, about 2 unrelated",
        ]
        if self.calibrated_on is not None:
            notes.append(f"int8 was calibrated on {self.calibrated_on} other images")
        return [*notes, *self.unread.values()]
