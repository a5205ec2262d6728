"""ScaleNorm: maps of fields over several scales in, the same normalised with statistics of the fields out."""

from __future__ import annotations

from .steerable import FieldNorm

__all__ = ["ScaleNorm"]


class ScaleNorm(FieldNorm):
    """BatchNorm of maps (B, fields * scales, H, W), statistics shared over a field's scales and pixels.

    So are its weight and bias: a shift of the scale axis passes through.

    >>> norm = ScaleNorm(fields=2, scales=3)
    >>> norm(torch.rand(4, 6, 5, 5)).shape, sum(p.numel() for p in norm.parameters())
    (torch.Size([4, 6, 5, 5]), 4)
    """

    def __init__(self, fields: int, scales: int) -> None:
        super().__init__(fields, scales)
