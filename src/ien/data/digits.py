"""5,000 digits of MNIST that come with the package: real data without a download.

They are in ``digits.npz``; ``digits.txt`` says whose they are, and under which licence.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .._files import digest, seeded

__all__ = ["embedded_digits"]

PATH = Path(__file__).with_name("digits.npz")
SHA256 = "246e0c30eeea57c8d0037d3f38c8e00651ec204cc61b8022563e9aeeb9d756f4"


def embedded_digits(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Load 500 images of each digit, shuffled by ``seed``.

    Good for examples and tests; for results, use all of MNIST.

    Args:
        seed: Decides the order.

    Returns:
        Images (5000, 1, 28, 28) in [0, 1] and labels (5000,).

    >>> x, y = embedded_digits()
    >>> x.shape, y[:5].tolist()
    (torch.Size([5000, 1, 28, 28]), [2, 5, 8, 1, 3])
    """
    content = _content()
    with np.load(io.BytesIO(content)) as arrays:
        images = torch.from_numpy(arrays["images"])  # (5000, 28, 28) uint8
        labels = torch.from_numpy(arrays["labels"])  # (5000,) uint8
    order = torch.randperm(len(images), generator=seeded(seed))
    x = images[order].unsqueeze(1).float().div_(255)  # (5000, 1, 28, 28)
    return x, labels[order].long()


def _content() -> bytes:
    """Read the file, which must be the one that the package came with."""
    try:
        content = PATH.read_bytes()
    except OSError as error:
        raise FileNotFoundError(f"{PATH} cannot be read ({error.strerror}): install ien again") from None
    if digest(content) != SHA256:
        raise ValueError(f"{PATH} is damaged, its sha256 is not {SHA256[:12]}…: install ien again")
    return content
