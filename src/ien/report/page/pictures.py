"""Images, maps and masks → text that the page's script draws."""

from __future__ import annotations

import base64
import math
import zlib
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, interpolate

__all__ = [
    "MAX_CLASS",
    "MAX_MAP_SIZE",
    "Json",
    "at_most",
    "mask_frames",
    "mask_picture",
    "pack",
    "picture",
    "rounded",
]

MAX_MAP_SIZE, MAX_IMAGE_SIZE = 32, 96  # larger ones are averaged down: this is for looking only
MAX_MASK_SIZE = 96
"""Larger masks keep every so many pixels: classes cannot be averaged."""
MAX_CLASS = 254
"""Classes from here on look alike; 255 is what masks have where nothing is known."""

Json = dict[str, Any]


def picture(x: Tensor) -> Json:
    """Write an image (C, H, W) in [0, 1] as bytes: three channels, or the first one alone."""
    channels = 3 if len(x) >= 3 else 1
    x = at_most(x[:channels][None], MAX_IMAGE_SIZE)[0]
    pixels = (x.clamp(0, 1) * 255).round().to(torch.uint8)
    return {"size": list(pixels.shape), "pixels": _text(pixels.numpy().tobytes())}


def mask_picture(mask: Tensor) -> Json:
    """Write a mask (H, W) of classes, and of 255 where nothing is known, as bytes."""
    (small,) = _fewer_pixels(mask[None])
    return {"size": list(small.shape), "pixels": _text(small.numpy().tobytes())}


def mask_frames(masks: Tensor) -> Json:
    """Compress masks (n, H, W) of classes, bytes that are not scaled; see :func:`pack`."""
    small = _fewer_pixels(masks)
    return {"size": list(small.shape[1:]), "frames": _compressed(small)}


def pack(frames: Tensor) -> tuple[str, list[float | None]]:
    """Compress frames (n, h, w) to 256 steps of their common range; returns the text and the range.

    The text is the base64 of a zlib stream of the differences from frame to frame, modulo 256.
    """
    low, high = float(frames.min()), float(frames.max())
    width = (high - low) or 1.0  # of constant frames
    scaled = (frames.double() - low) * (255 / width)  # (n, h, w), from 0 to 255
    return _compressed(scaled.round().to(torch.uint8)), [rounded(low), rounded(high)]


def at_most(h: Tensor, size: int) -> Tensor:
    """Average maps (…, H, W) down to at most size × size pixels."""
    height, width = h.shape[-2:]
    if height <= size and width <= size:
        return h
    return adaptive_avg_pool2d(h, (min(height, size), min(width, size)))


def rounded(value: float, digits: int = 6) -> float | None:
    """Keep some significant digits, so that the page stays small; None for what is not a number."""
    if not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def _fewer_pixels(masks: Tensor) -> Tensor:
    """Return masks (n, H, W) as bytes, with at most :data:`MAX_MASK_SIZE` pixels along a side."""
    height, width = masks.shape[1:]
    size = (min(height, MAX_MASK_SIZE), min(width, MAX_MASK_SIZE))
    # the pixel in the middle of each cell, so that a rotated mask loses the rotated pixels
    small = interpolate(masks[None].float(), size, mode="nearest-exact")[0]  # (n, h, w)
    return small.to(torch.uint8)


def _compressed(frames: Tensor) -> str:
    """Compress bytes (n, h, w), as differences from frame to frame, which are small."""
    steps = frames.clone()
    steps[1:] = frames[1:] - frames[:-1]
    return _text(zlib.compress(steps.numpy().tobytes(), 9))


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
