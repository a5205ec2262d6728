"""Every random draw as a function of its seed, purpose and place: a resumed run sees the same ones."""

from __future__ import annotations

import hashlib

import torch

__all__ = ["generator", "seed_of"]


def seed_of(seed: int, purpose: str, *place: int) -> int:
    """A 63-bit seed for one purpose ("order", "elements", …) at one place (epoch, step)."""
    text = " ".join(map(str, (seed, purpose, *place)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, purpose: str, *place: int) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(seed_of(seed, purpose, *place))
