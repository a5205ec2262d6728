"""Rotate each image upright, run the model once, and rotate the answer back."""

from __future__ import annotations

import itertools
import json
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._files import write_tensors
from .._text import type_name
from ..groups.families import group as named_group
from ..groups.group import Group
from ..groups.members import permutes_members
from ..loss.modules import tensors_in
from ..measuring.inputs import (
    Images,
    check_floating,
    check_images,
    check_tensor,
    checked_batches,
    device_of,
    eval_mode,
)
from ..tying.tie import make_plain
from .orientation import orientation_network, shrink, train_orientation
from .outputs import Kinds, act_on_outputs, check_kinds, check_module, check_square

__all__ = ["Canonicalize"]

KEY = "ien.canonicalize"
"""Where a file says what its network is for."""


class Canonicalize(nn.Module):
    """Rotate each image to its upright orientation first, then run the model as it is.

        f̄(x)  =  k · f(k⁻¹ · x),      k the element with the highest score s(x)[k]

    The scores are exchanged when the image is transformed (see ``orientation.py``), so k⁻¹ · x is
    the same image for all transformed copies of x. The result is exactly invariant (scores) or
    equivariant (maps, boxes, …) to quarter turns and flips, even where the orientation is guessed
    wrong. For images that have no upright, such as aerial ones, it is consistent all the same.

    Call :meth:`fit` with images in their usual orientation: it takes minutes, needs no labels, and
    the network it trains costs 35 million multiplications an image: 7 to 9 % of EfficientNet-Lite0
    at 224 pixels in batches of 8, more for single images. Without it the model's own confidence
    decides, which costs |G| more passes on copies of half the size.

    Not for a model that already sees images in all orientations, where there is nothing to gain.

    Args:
        model: A trained model. It is used as it is, not copied.
        group: Rotations and flips, such as ``"rot4"``.
        outputs: How what it returns changes with the image, as in :class:`GroupAverage`.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    >>> images = torch.rand(64, 3, 20, 20)
    >>> upright = Canonicalize(net, "rot4").fit(images, steps=2, progress=False)
    >>> torch.equal(upright(images), upright(images.rot90(1, (2, 3))))
    True
    """

    network: nn.Module | None

    def __init__(self, model: nn.Module, group: Group | str, outputs: Kinds = "scores") -> None:
        super().__init__()
        check_module(model, "Canonicalize")
        check_kinds(outputs)
        self.model = model
        self.group = named_group(group)
        if not permutes_members(self.group):
            raise ValueError(
                f"Canonicalize needs rotations and flips, such as rot4xflip; got {self.group} "
                f"({', '.join(self.group.labels)}): use GroupAverage or adapt for others"
            )
        self.outputs = outputs
        self.network = None
        self.accuracy: float | None = None
        """How often :meth:`fit` was right about images that it held out."""

    def fit(self, images: Images, steps: int = 2000, seed: int = 0, progress: bool = True) -> Canonicalize:
        """Train a small network that tells the orientation of an image; no labels are needed.

        Do not use it on images in random orientations: there is nothing to learn from them.

        Args:
            images: Images in their usual orientation, as the model takes them: a tensor
                (N, C, n, n), or batches. A tenth is held out for :attr:`accuracy`.
            steps: Steps of training with 64 images each.
            seed: Of all random choices.
            progress: Whether to show a bar on a terminal, and a line a minute in a log.

        Returns:
            Itself.
        """
        first, images = _first_batch(images)
        check_floating(first)
        check_square(first)
        device = device_of(self.model, first.device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = orientation_network(self.group, first.shape[1]).to(device)
        self.accuracy = train_orientation(network, self.group, images, steps, seed, progress)
        self.network = network.requires_grad_(False)
        return self

    def save(self, path: str | PathLike[str]) -> None:
        """Write the network that :meth:`fit` trained, without the model, to a .safetensors file.

        Args:
            path: The file, which is replaced whole.

        Raises:
            ValueError: Nothing was fitted.
        """
        if self.network is None:
            raise ValueError("there is nothing to save: call fit(images) first")
        described = {"group": str(self.group), "accuracy": self.accuracy}
        write_tensors(Path(path), self.network.state_dict(), {KEY: json.dumps(described)})

    @classmethod
    def load(cls, model: nn.Module, path: str | PathLike[str], outputs: Kinds = "scores") -> Canonicalize:
        """Wrap a model with a network that :meth:`save` wrote. Nothing in the file is executed.

        Args:
            model: The trained model.
            path: The file.
            outputs: How what the model returns changes with the image.

        Raises:
            ValueError: The file cannot be read, or was not written by :meth:`save`.
        """
        from safetensors import safe_open

        # not inside the block: the file is not to blame for these
        check_module(model, "Canonicalize")
        check_kinds(outputs)
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                if KEY not in metadata:
                    raise ValueError(f"it says nothing of {KEY}")
                described = json.loads(metadata[KEY])
                tensors = {name: file.get_tensor(name) for name in file.keys()}
            found = cls(model, described["group"], outputs)
            network = make_plain(orientation_network(found.group, len(tensors["0.running_mean"])))
            network.load_state_dict(tensors)
            found.accuracy = described["accuracy"]
        except FileNotFoundError:
            raise
        except Exception as error:  # a damaged file can provoke anything
            reason = " ".join(str(error).split())[:100]
            raise ValueError(
                f"{path} was not written by Canonicalize.save, or is damaged ({reason}): fit again, or pass "
                f"the file that it wrote or that ien adapt --how canonicalize did"
            ) from error
        device = device_of(model, torch.device("cpu"))
        found.network = network.to(device).eval().requires_grad_(False)
        return found

    @torch.no_grad()
    def orientation(self, images: Tensor) -> Tensor:
        """Return the element that each image is under, (B,): 0 for one that is upright.

        Args:
            images: Square images (B, C, n, n).
        """
        check_square(images)
        if self.network is None:
            return self._confidence(images).argmax(1)
        first = next(self.network.children(), None)  # of ours, a norm of the images
        if isinstance(first, nn.BatchNorm2d) and images.shape[1] != first.num_features:
            raise ValueError(
                f"the network that tells orientations was fitted to images of {first.num_features} channels; "
                f"got {images.shape[1]}: pass such images, or call fit again"
            )
        with eval_mode(self.network):
            return self.network(shrink(images)).argmax(1)

    def forward(self, images: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns for upright images, moved with each image.

        Args:
            images: Square images (B, C, n, n).
            args: What the model takes besides.
            kwargs: The same by name.
        """
        check_tensor(images)
        k = self.orientation(images).cpu()  # (B,)
        upright = self.group.act(images, k, inverse=True)
        returned = self.model(upright, *args, **kwargs)
        height, width = images.shape[-2:]
        return act_on_outputs(returned, self.outputs, self.group, k, (height, width))

    def extra_repr(self) -> str:
        how = "fitted" if self.network is not None else "by the model's confidence"
        return f"group={self.group}, outputs={self.outputs!r}, {how}"

    def _confidence(self, images: Tensor) -> Tensor:
        """The model's highest probability for k⁻¹ · x, for each element k: (B, |G|)."""
        half = shrink(images, max(1, images.shape[-1] // 2))  # (B, C, n/2, n/2)
        confidence = []
        with eval_mode(self.model):
            for k in range(len(self.group)):
                elements = torch.full((len(half),), k)
                scores = _only_scores(self._small(self.group.act(half, elements, inverse=True)))
                confidence.append(scores.softmax(1).amax(1))  # (B,)
        return torch.stack(confidence, dim=1)  # (B, |G|)

    def _small(self, images: Tensor) -> Any:
        try:
            return self.model(images)
        except (RuntimeError, ValueError) as error:
            side = images.shape[-1]
            reason = " ".join(str(error).split())[:200]
            raise ValueError(
                f"the model fails on copies of {side}×{side} pixels ({reason}): call fit(images), "
                f"after which it runs on whole images only"
            ) from error


def _only_scores(returned: Any) -> Tensor:
    """The scores (B, classes) that a model returned, if they are all that it returned."""
    found = list(tensors_in(returned))
    if len(found) == 1 and found[0].ndim == 2:
        return found[0]
    what = ", ".join(str(tuple(tensor.shape)) for tensor in found) or type_name(returned)
    raise ValueError(
        f"without fit(images) the model must return scores (B, classes); it returns {what}: call "
        f"fit(images), which works for every model"
    )


def _first_batch(images: Images) -> tuple[Tensor, Images]:
    """Return some images to look at, and all of them again: batches may come only once."""
    check_images(images)
    if isinstance(images, Tensor):
        if len(images) == 0:
            raise ValueError("there are no images to fit")
        for _ in checked_batches(images, len(images)):  # one batch: errors tell the shape that was given
            pass
        return images, images
    batches = checked_batches(images, 1)
    first = next(batches, None)
    if first is None:
        raise ValueError("there are no images to fit")
    return first, itertools.chain([first], batches)
