r"""Worth: what each member of each feature group does for a trained model.

With h_k the map of member k, ĥ the maximum over its feature group and ĥ_{-k} that without k:

    wins_k    =  share of pixels where h_k alone is the maximum
    change_k  =  mean (ĥ - ĥ_{-k})  /  deviation of ĥ
    loss_k    =  mean over images of | Σ over readers  Σ over pixels  ∂L/∂h_k · h_k |

The last is the first-order estimate of how the loss L changes if no layer can read k any more. A
group pool would read the runner-up instead, so there h_k is replaced by ĥ - ĥ_{-k}. A batch norm
behind a reader takes out what h_k adds on average, if its statistics are estimated again, so there
h_k is replaced by its deviation from its mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..._text import type_name
from ...loss.feature_groups import FeatureGroups, GroupPool
from ...measuring.inputs import try_model
from .channels import Channels, Read, Space

__all__ = ["Worth", "lead", "worth_of"]

Loss = Callable[[Any, Any], Tensor]


@dataclass
class Worth:
    """What the channels of a space do, one number for each."""

    wins: Tensor
    """The share of pixels where the channel alone is the maximum of its feature group, (C,)."""
    change: Tensor
    """How far the maximum falls without it, in deviations, (C,)."""
    loss: Tensor | None = None
    """How far the loss changes without it, (C,); None without labels."""

    @property
    def score(self) -> Tensor:
        """What decides: the loss if it is known, else the change of the maximum."""
        if self.loss is None:
            return self.change
        return self.loss


def lead(h: Tensor, feature_groups: FeatureGroups) -> Tensor:
    """Return by how much each member leads its feature group: ĥ - ĥ_{-k}, 0 where it does not win.

    A feature group of one member would be empty without it: it leads by 0.

    Args:
        h: Maps (B, C, P).
        feature_groups: How the C channels are partitioned.

    >>> lead(torch.tensor([[[5.0], [2.0], [1.0], [4.0]]]), FeatureGroups.of(4)).flatten()
    tensor([1., 0., 0., 0.])
    """
    leads = []
    start = 0
    for size, channels in feature_groups.blocks(h.shape[1]):
        part = h[:, start : start + channels].unflatten(1, (-1, size))  # (B, N, size, P)
        start += channels
        ahead = torch.zeros_like(part)
        if size > 1:
            best, winner = part.topk(2, dim=2)  # (B, N, 2, P)
            margin = best[:, :, :1] - best[:, :, 1:]  # (B, N, 1, P)
            ahead.scatter_(2, winner[:, :, :1], margin)
        leads.append(ahead.flatten(1, 2))  # (B, channels, P)
    return torch.cat(leads, 1)


def worth_of(
    model: nn.Module,
    channels: Channels,
    batches: Iterable[tuple[Tensor, Tensor | None]],
    loss: Loss,
    new_statistics: bool = False,
) -> dict[str, Worth]:
    """Run a model over images, and score the channels of each space that may lose some.

    Args:
        model: The model, in eval mode: images must not see each other.
        channels: Its spaces and readers.
        batches: Images (B, C, H, W), and what ``loss`` compares outputs with, or None.
        loss: ``loss(output, labels)``, a mean over images.
        new_statistics: Whether those of batch norms will be estimated again.
    """
    spaces = {name: space for name, space in channels.spaces.items() if space.feature_groups is not None}
    sums = _Sums(spaces)
    if new_statistics:
        sums.normed = _normed(channels)
    for x, labels in batches:
        sums.begin(labels is not None)
        with _listening(model, channels, sums), torch.set_grad_enabled(labels is not None):
            output = try_model(model, x, images_alone=True)
            if labels is not None:
                sums.add_loss(_loss_of(loss, output, labels))
        sums.images += len(x)
    return sums.worth()


def _loss_of(loss: Loss, output: Any, labels: Tensor) -> Tensor:
    try:
        return loss(output, labels)
    except Exception as error:  # labels of another kind, a class too many: whatever the loss refuses
        given = f"{labels.dtype} {tuple(labels.shape)} from {labels.min()} to {labels.max()}"
        answer = tuple(output.shape) if isinstance(output, Tensor) else type_name(output)
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"the loss fails for the output {answer} with labels {given} ({reason}): pass labels that fit, "
            f"or loss="
        ) from error


def _normed(channels: Channels) -> set[str]:
    """Return the spaces that a batch norm with running statistics reads."""
    found: set[str] = set()
    for read in channels.reads:
        if isinstance(read.module, _BatchNorm) and read.module.track_running_stats:
            found.update(part.space for part in read.parts if part.space is not None)
    return found


class _Sums:
    """Sums over images of what is said of each channel."""

    def __init__(self, spaces: dict[str, Space]) -> None:
        self.spaces = spaces
        self.images = 0
        self.wins: dict[str, Tensor] = {}
        self.change: dict[str, Tensor] = {}
        self.loss: dict[str, Tensor] = {}
        self.readers = dict.fromkeys(spaces, 0)
        """How often each space has been read, times images."""
        self.gates: list[tuple[str, Tensor]] = []
        """What multiplies the inputs of each reader, in this batch."""
        self.with_loss = False
        self.normed: set[str] = set()
        """Spaces that a batch norm reads."""
        for name, space in spaces.items():
            self.wins[name] = torch.zeros(space.channels, dtype=torch.float64)
            self.change[name] = torch.zeros(space.channels, dtype=torch.float64)

    def begin(self, with_loss: bool) -> None:
        """Begin with a batch."""
        self.gates = []
        self.with_loss = with_loss

    def gate(self, space: str, h: Tensor) -> Tensor:
        """Return zeros (B, C), whose gradient says what the loss loses without each channel."""
        zeros = torch.zeros(h.shape[:2], dtype=h.dtype, device=h.device, requires_grad=True)
        self.gates.append((space, zeros))
        return zeros

    @torch.no_grad()
    def add_maps(self, space: str, h: Tensor, ahead: Tensor) -> None:
        """Add what maps (B, C, P) say, and by how much each channel is ahead in them."""
        groups = self.spaces[space].feature_groups
        assert groups is not None
        highest = []
        start = 0
        for size, channels in groups.blocks(h.shape[1]):
            part = h[:, start : start + channels].unflatten(1, (-1, size))  # (B, N, size, P)
            highest.append(part.amax(2).flatten())
            start += channels
        deviation = torch.cat(highest).double().std().clamp_min(1e-12)
        wins = (ahead > 0).double().mean((0, 2))  # (C,)
        change = ahead.double().mean((0, 2)) / deviation  # (C,)
        self.wins[space] += len(h) * wins.cpu()
        self.change[space] += len(h) * change.cpu()
        self.readers[space] += len(h)

    def add_loss(self, loss: Tensor) -> None:
        """Add what the gradients of a loss say, image by image."""
        given = [zeros for _, zeros in self.gates]
        gradients = torch.autograd.grad(loss, given, allow_unused=True)
        together: dict[str, Tensor] = {}  # readers of the same channel add up, with their signs
        for (space, zeros), gradient in zip(self.gates, gradients, strict=True):
            if gradient is None:
                gradient = torch.zeros_like(zeros)
            gradient = gradient.detach().double().cpu() * len(zeros)  # the loss is a mean over images
            together[space] = together.get(space, 0) + gradient
        for space, gradient in together.items():
            self.loss[space] = self.loss.get(space, 0) + gradient.abs().sum(0)  # (C,)

    def worth(self) -> dict[str, Worth]:
        found = {}
        for name in self.spaces:
            reads = max(self.readers[name], 1)
            wins = self.wins[name] / reads
            change = self.change[name] / max(self.images, 1)
            loss = None
            if name in self.loss:
                loss = self.loss[name] / self.images
            found[name] = Worth(wins, change, loss)
        return found


@contextmanager
def _listening(model: nn.Module, channels: Channels, sums: _Sums) -> Iterator[None]:
    """Let all readers of a model tell what they read."""
    handles = []
    try:
        for read in channels.reads:
            if not any(part.space in sums.spaces for part in read.parts):
                continue
            module = model.get_submodule(read.name)
            if isinstance(module, GroupPool):
                handles.append(module.register_forward_hook(_pooling(read, sums)))
            elif read.mixes:
                handles.append(module.register_forward_pre_hook(_reading(read, sums)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _reading(read: Read, sums: _Sums) -> Any:
    """Make a hook for a layer: x becomes x + gate · x, and ∂L/∂gate is Σ ∂L/∂x · x."""

    def hook(module: nn.Module, args: Any) -> Any:
        x = args[0]
        maps = _maps(x, read)  # (B, C, P)
        gates = []
        start = 0
        for part in read.parts:
            h = maps[:, start : start + part.channels]
            start += part.channels
            if part.space not in sums.spaces:
                gates.append(torch.zeros(h.shape[:2], dtype=x.dtype, device=x.device))
                continue
            groups = sums.spaces[part.space].feature_groups
            assert groups is not None
            sums.add_maps(part.space, h.detach(), lead(h.detach(), groups))
            gates.append(sums.gate(part.space, h))
        if not sums.with_loss:
            return None
        used = maps
        if read.out in sums.normed:
            used = maps - maps.detach().mean((0, 2), keepdim=True)
        gated = maps + used * torch.cat(gates, 1).unsqueeze(2)
        return (_unmapped(gated, x), *args[1:])

    return hook


def _pooling(read: Read, sums: _Sums) -> Any:
    """Make a hook for a group pool: ĥ becomes ĥ + Σ over members of gate · (ĥ - ĥ_{-k})."""

    def hook(module: nn.Module, args: Any, output: Tensor) -> Any:
        space = read.parts[0].space
        if space is None:
            return None
        groups = sums.spaces[space].feature_groups
        assert groups is not None
        h = args[0].detach().flatten(2)  # (B, C, P)
        ahead = lead(h, groups)
        sums.add_maps(space, h, ahead)
        if not sums.with_loss:
            return None
        weighted = ahead * sums.gate(space, h).unsqueeze(2)  # (B, C, P)
        parts = []
        start = 0
        for size, count in groups.blocks(h.shape[1]):
            block = weighted[:, start : start + count].unflatten(1, (-1, size))  # (B, N, size, P)
            parts.append(block.sum(2))
            start += count
        return output + torch.cat(parts, 1).view_as(output)

    return hook


def _maps(x: Tensor, read: Read) -> Tensor:
    """Return what a layer reads as (B, C, P)."""
    if isinstance(read.module, nn.Linear):
        if x.ndim == 2:
            return x.unflatten(1, (-1, read.pixels))  # (B, C, pixels)
        return x.movedim(-1, 1).flatten(2)  # (B, …, C) -> (B, C, P)
    return x.flatten(2)


def _unmapped(maps: Tensor, x: Tensor) -> Tensor:
    """Bring (B, C, P) back into the form of ``x``."""
    if x.ndim > 2 and maps.shape[1] != x.shape[1]:  # channels last
        return maps.view(len(x), maps.shape[1], *x.shape[1:-1]).movedim(1, -1)
    return maps.reshape(x.shape)
