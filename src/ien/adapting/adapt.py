"""Train a copy of a model to answer for a transformed image as the original does for the image."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TypeVar

import torch
from torch import Tensor, nn

from .._files import generator
from .._stopping import stop_requests
from .._text import progress_bar
from ..groups.families import group as named_group
from ..groups.group import Group
from ..loss.layers import weights_of
from ..measuring.inputs import Images, try_model
from .batches import Batches
from .checkpoint import Checkpoint, weights_digest
from .head import last_linear
from .imitation import Imitation
from .outputs import Kinds, check_kinds, check_module
from .rate import share_of_peak
from .variation import has_flips

__all__ = ["adapt"]

M = TypeVar("M", bound=nn.Module)
CHECKPOINT_SECONDS = 60.0


def adapt(
    model: M,
    images: Images,
    group: Group | str,
    minutes: float = 10.0,
    outputs: Kinds = "scores",
    layers: Sequence[str] | Mapping[str, float] = (),
    features: float = 10.0,
    upright: float = 0.25,
    mix: float = 0.5,
    share: float = 0.7,
    learning_rate: float = 1e-4,
    batch_size: int = 16,
    seed: int = 0,
    folder: str | PathLike[str] | None = None,
    progress: bool = True,
) -> M:
    """Return a copy of a trained model that is less disturbed by rotation; it needs no labels.

    The copy learns from the model itself: its answer for g · x should be the model's for x, and its
    answer for x should stay. Nothing is added, so it costs what the model costs. Dropout is off,
    and norms keep their statistics.

    It is not exact: :class:`Canonicalize` and :class:`GroupAverage` are, at a cost for each image.
    With labels, and time to train from the beginning, :func:`make_equivariant` is better.

    Args:
        model: A trained model; it is not changed.
        images: Images in their usual orientation, as the model takes them: a tensor (N, C, n, n),
            or batches that can be gone through again and again, such as a DataLoader. Thousands,
            sharp, and of the size that the model will see: what it learns at another helps little.
        group: The transformations, such as ``"rot4"``.
        minutes: How long to train. The result depends on how fast the machine is.
        outputs: What the model returns, as in :class:`GroupAverage`. Maps of several channels count
            as scores of classes for each pixel.
        layers: Layers whose maps should be those of the model, transformed; or a mapping to their
            weights β.
        features: Weight γ of what the last layer reads, if that is an ``nn.Linear``.
        upright: Share of the images that the copy sees as they are.
        mix: Share of the images that are mixed with another one: more to learn from few images.
        share: How far to go from the weights of the model (0) to those that were learnt (1): 1 does
            more for rotated images, less keeps more of the answers for upright ones. It is applied
            last: with ``folder``, call again with another share, and nothing is trained again.
        learning_rate: The highest; it rises for 20 steps, and falls as a cosine.
        batch_size: Images a step, if ``images`` is a tensor.
        seed: Of all random choices.
        folder: Where to keep a checkpoint, every minute and after Ctrl-C. If it has one, of the
            same model and settings, training goes on from it.
        progress: Whether to show a bar on a terminal, and a line a minute in a log.

    Returns:
        The adapted copy, in eval mode.

    Raises:
        ValueError: There are too few images, the model fails on them, or the loss is not finite.
        KeyboardInterrupt: Ctrl-C, or a polite kill, after the checkpoint is saved.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> adapted = adapt(net, torch.rand(64, 3, 12, 12), "rot4", minutes=0.01, progress=False)
    >>> list(adapted.state_dict()) == list(net.state_dict())
    True
    """
    named = named_group(group)
    _check(model, minutes, outputs, learning_rate, features)
    _check_shares(upright=upright, mix=mix, share=share)
    compared = weights_of(layers, "layer")
    batches = Batches(images, batch_size, mix, seed)
    teacher = copy.deepcopy(model).eval().requires_grad_(False)
    student = copy.deepcopy(model).eval()  # eval: statistics of norms are as they were
    _lay_out(teacher, torch.channels_last)  # about half the time on a CPU
    _lay_out(student, torch.channels_last)
    trained = [parameter for parameter in student.parameters() if parameter.requires_grad]
    if not trained:
        raise ValueError("all parameters of the model are frozen: call model.requires_grad_(True) first")
    optimizer = torch.optim.AdamW(trained, learning_rate, weight_decay=0.0)

    settings = {
        "model": weights_digest(model),
        "group": str(named),
        "outputs": dict(outputs) if isinstance(outputs, Mapping) else outputs,
        "layers": dict(compared),
        "batch_size": batch_size,
        "seed": seed,
        "learning_rate": learning_rate,
        "features": features,
        "upright": upright,
        "mix": mix,
    }
    checkpoint = Checkpoint(folder, settings)
    step, seconds = checkpoint.load(student, optimizer)
    budget = 60 * minutes
    saved = seconds
    may_mirror = not has_flips(named)
    imitation: Imitation | None = None
    bar = progress_bar("adapting (seconds)", round(budget), shown=progress, lines=True)
    with bar as advance, stop_requests() as stop:
        advance(seconds)
        while seconds < budget and not stop:
            started = time.monotonic()
            x = batches.draw(step, device=trained[0].device, may_mirror=may_mirror)
            if imitation is None:
                with torch.no_grad():
                    try_model(teacher, x[:1])
                head = last_linear(teacher, x[:1]) if features > 0 else None
                imitation = Imitation(named, outputs, compared, head, features)
            g = _elements(named, len(x), upright, generator(seed, "elements", step))
            loss = imitation.loss(teacher, student, x, g)
            if not loss.isfinite():
                raise ValueError(
                    f"the loss is {loss.item()} at step {step}: use a learning_rate below {learning_rate:g}"
                )
            for parameters in optimizer.param_groups:
                parameters["lr"] = learning_rate * share_of_peak(step, seconds / budget)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            taken = time.monotonic() - started
            seconds += taken
            advance(taken, state=f"step {step}, loss {loss.item():.3f}")
            if seconds - saved > CHECKPOINT_SECONDS:
                checkpoint.save(student, optimizer, step, seconds)
                saved = seconds
    checkpoint.save(student, optimizer, step, seconds)
    if stop:
        raise KeyboardInterrupt
    _go_back(student, teacher, share)
    _lay_out(student, torch.contiguous_format)
    return student.requires_grad_(True)


def _lay_out(model: nn.Module, order: torch.memory_format) -> None:
    """Store kernels in another order of their dims; the numbers stay."""
    model.to(memory_format=order)  # type: ignore[call-overload]


def _elements(group: Group, count: int, upright: float, draws: torch.Generator) -> Tensor:
    """Draw an element for each of ``count`` images (count,): the identity for a share of them."""
    still = round(upright * count)
    moved = group.sample(count - still, draws)
    return torch.cat([torch.zeros(still, dtype=torch.int64), moved])


def _go_back(student: nn.Module, teacher: nn.Module, share: float) -> None:
    """Set the student's weights to teacher + share * (student - teacher)."""
    if share == 1:
        return
    with torch.no_grad():
        for learnt, original in zip(student.parameters(), teacher.parameters(), strict=True):
            learnt.lerp_(original, 1 - share)


def _check(model: object, minutes: float, outputs: object, learning_rate: float, features: float) -> None:
    check_module(model, "adapt")
    if not minutes > 0 or not math.isfinite(minutes):
        raise ValueError(f"minutes must be a number above 0; got {minutes}")
    if not learning_rate > 0 or not math.isfinite(learning_rate):
        raise ValueError(f"learning_rate must be a number above 0; got {learning_rate}")
    if not 0 <= features < math.inf:
        raise ValueError(f"features must be a number of at least 0; got {features}")
    check_kinds(outputs)


def _check_shares(**shares: float) -> None:
    for name, value in shares.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be a number from 0 to 1; got {value}")
