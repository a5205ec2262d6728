"""e2cnn, which the steerable baseline is compared with: imported quietly, with the numpy it expects."""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from ien.baselines.steerable_basis import Functions


@contextmanager
def library() -> Iterator[tuple[Any, Any]]:
    """Give ``e2cnn.gspaces`` and ``e2cnn.nn``; skip the test where e2cnn is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # e2cnn is older than the torch and numpy it meets
        pytest.importorskip("e2cnn", reason="e2cnn, which this compares with, is in the dev extra")
        gspaces = importlib.import_module("e2cnn.gspaces")
        steerable = importlib.import_module("e2cnn.nn")
        utils = importlib.import_module("e2cnn.kernels.utils")
        before = utils.np
        utils.np = _OlderNumpy()
        try:
            yield gspaces, steerable
        finally:
            utils.np = before


class _OlderNumpy:
    """numpy with ``copy=False`` as before 2.0: copy only if needed. Flips fail without it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(numpy, name)

    def array(self, value: Any, copy: bool = True) -> Any:
        if copy:
            return numpy.array(value)
        return numpy.asarray(value)


def space(rotations: int, flips: bool) -> Any:
    """The library's group of these rotations, with or without flips."""
    with library() as (gspaces, _):
        if flips:
            return gspaces.FlipRot2dOnR2(rotations)
        return gspaces.Rot2dOnR2(rotations)


def members(rotations: int, flips: bool) -> Tensor:
    """Where our members are among the library's: it lists all rotations, then all flips."""
    order = torch.arange(rotations * (1 + flips)).view(-1, rotations)  # (1 or 2, rotations)
    return order.T.flatten()  # (members,)


def expected_basis(rotations: int, flips: bool, size: int, from_image: bool, functions: Functions) -> Tensor:
    """The library's basis, (n, members out, members in, size, size), in torch's default dtype."""
    of = space(rotations, flips)
    source = of.trivial_repr if from_image else of.regular_repr
    with library() as (_, steerable):
        conv = steerable.R2Conv(
            steerable.FieldType(of, [source]),
            steerable.FieldType(of, [of.regular_repr]),
            size,
            frequencies_cutoff=functions.cutoff,
            sigma=functions.sigma,
            bias=False,
            initialize=False,
            recompute=True,  # its own cache would share one tensor between all layers and dtypes
        )
    (block,) = conv.basisexpansion._modules.values()  # children() needs a hash, which new numpy breaks
    basis = block.sampled_basis.detach()  # (n, members out, members in, size * size)
    basis = basis.unflatten(-1, (math.isqrt(basis.shape[-1]), -1))
    ours = members(rotations, flips)
    basis = basis[:, ours]
    if not from_image:
        basis = basis[:, :, ours]
    return basis
