"""Which way up is an image? A small network that learns it, without labels.

The network s has one score for each element of the group, and is tied so that they are exchanged
when the image is transformed:

    s(g · x)[m]  =  s(x)[g⁻¹ ∘ m]

So if element k has the highest score for x, then g ∘ k has it for g · x, whatever the network has
learnt: k⁻¹ · x is the same image for every transformed copy of x. What it learns is that element 0
(the identity) should win for images that are upright.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._files import digest, generator, seeded
from .._text import progress_bar
from ..groups.group import Group
from ..groups.members import regular_sizes
from ..measuring.inputs import Images, check_floating, checked_batches
from ..tying.tie import make_equivariant, make_plain
from .outputs import check_square
from .rate import share_of_peak
from .variation import has_flips, varied

__all__ = ["SIZE", "orientation_network", "shrink", "train_orientation"]

SIZE = 64
"""Pixels along each side of the copies that the network looks at."""
MIN_IMAGES = 32
"""Fewer teach it nothing."""
HELD_OUT = 10
"""Every tenth image is kept out of training, to see how often the network is right."""
BATCH_SIZE = 64
LEARNING_RATE = 2e-3


def orientation_network(group: Group, channels: int, width: int = 16) -> nn.Sequential:
    """Return a CNN from images (B, channels, 64, 64) to scores (B, |G|), with its weights tied.

    Args:
        group: Rotations and flips that are closed under composition.
        channels: Those of the images.
        width: Channels of the first layer: a multiple of |G|. It costs 35 million multiplications
            an image at 16, and four times as many at twice the width.

    Raises:
        ValueError: The group has other elements, or is not closed.
    """
    elements = regular_sizes(group)[0]
    width = elements * -(-width // elements)  # rounded up
    layers: list[nn.Module] = [nn.BatchNorm2d(channels, affine=False)]  # whatever range images have
    before = channels
    for after, repeats in ((width, 1), (2 * width, 1), (4 * width, 2), (8 * width, 2)):
        for _ in range(repeats):
            layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
            before = after
        layers.append(nn.AvgPool2d(2))
    layers += [nn.Conv2d(before, before, 3, padding=1, bias=False), nn.BatchNorm2d(before), nn.ReLU()]
    layers.append(nn.AdaptiveAvgPool2d(1))
    layers.append(nn.Conv2d(before, elements, 1, bias=False))
    layers.append(nn.Flatten())
    network = nn.Sequential(*layers)
    last = str(len(layers) - 2)
    images = torch.rand(4, channels, SIZE, SIZE, generator=seeded(0))
    # the scores are a feature group: the elements exchange them
    make_equivariant(network, group, images, feature_groups={"": elements, last: elements})
    return network


def shrink(images: Tensor, size: int = SIZE) -> Tensor:
    """Return small square copies (B, C, size, size) of square images (B, C, H, W)."""
    if images.shape[-2:] == (size, size):
        return images.float()
    return F.interpolate(images.float(), (size, size), mode="bilinear", antialias=True)


def train_orientation(
    network: nn.Module, group: Group, images: Images, steps: int, seed: int, progress: bool
) -> float:
    """Teach the network which element images are under, from images in their usual orientation.

    Args:
        network: From :func:`orientation_network`; its weights are plain afterwards.
        group: The transformations.
        images: A tensor (N, C, H, W), or batches. Only small copies are kept in memory, and an
            image that comes again counts once.
        steps: Steps of training, with 64 images each.
        seed: Of all random choices.
        progress: Whether to show a bar on a terminal, and a line a minute in a log.

    Returns:
        How often the network is right about images that were held out: 1 is always, 1/|G| chance.

    Raises:
        ValueError: There are too few images, or they cannot be used.
    """
    device = next(network.parameters()).device
    small = _small_copies(images)
    held_out = small[::HELD_OUT]
    kept = torch.ones(len(small), dtype=torch.bool)
    kept[::HELD_OUT] = False
    training = small[kept]

    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE, weight_decay=1e-4)
    may_mirror = not has_flips(group)  # else the network has to tell mirrored images apart
    network.train()
    with progress_bar("learning which way is up", steps, shown=progress, lines=True) as advance:
        for step in range(steps):
            draws = generator(seed, "orientation", step)
            chosen = torch.randint(len(training), (BATCH_SIZE,), generator=draws)
            x = varied(training[chosen], may_mirror, draws)  # (B, C, 64, 64)
            g = group.sample(BATCH_SIZE, draws, include_identity=True)  # (B,)
            scores = network(group.act(x.to(device), g))  # (B, |G|)
            loss = F.cross_entropy(scores, g.to(device), label_smoothing=0.05)
            for settings in optimizer.param_groups:
                settings["lr"] = LEARNING_RATE * share_of_peak(step, step / steps)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            advance(state=f"loss {loss.item():.2f}")
    make_plain(network)
    network.eval()
    return _share_upright(network, held_out.to(device))


def _small_copies(images: Images) -> Tensor:
    """Return all different images as small copies (N, C, 64, 64), one batch in memory at a time."""
    copies: dict[str, Tensor] = {}
    for x in checked_batches(images, BATCH_SIZE):
        check_floating(x)
        check_square(x)
        for copy in shrink(x.cpu()):
            # an image that comes again would be learnt and held out too
            copies.setdefault(digest(copy.numpy().tobytes()), copy)
    if len(copies) < MIN_IMAGES:
        raise ValueError(
            f"learning an orientation needs {MIN_IMAGES} different images or more, better thousands; got "
            f"{len(copies)}: use more, or average over the group instead, which needs none"
        )
    return torch.stack(list(copies.values()))


@torch.no_grad()
def _share_upright(network: nn.Module, images: Tensor) -> float:
    """How often the identity has the highest score for upright images (N, C, 64, 64)."""
    right = 0
    for x in images.split(BATCH_SIZE):
        right += int((network(x).argmax(1) == 0).sum())
    return right / len(images)
