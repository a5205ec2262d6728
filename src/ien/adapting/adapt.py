"""Train a copy of a model to answer for a transformed image as the original does for the image.

    L = d( g · f(x), f′(g · x) ) + γ e( h(x), h′(g · x) ) + Σ_i β_i e( g · h_i(x), h′_i(g · x) )

f is the model as it came, frozen; f′ its copy; g an element, for some of the images the identity;
d the Kullback-Leibler divergence of scores, or the relative squared error e of anything else. h is
what a classifier's last layer reads, h_i are the maps of layers that are named: the paper's loss,
with the frozen model's map in place of the copy's own.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._files import check_regular, digest, generator, replace_file
from .._text import progress_bar
from ..groups.families import group as named_group
from ..groups.group import Group
from ..loss.capture import capture
from ..loss.error import mean_error
from ..loss.layers import weights_of
from ..loss.modules import tensors_in
from ..measuring.inputs import Images, check_floating, check_images, checked_batches, try_model
from .head import inputs_of, last_linear
from .outputs import Kind, Kinds, act_on_outputs, check_kinds, check_square, kinds_in
from .rate import share_of_peak
from .stopping import stop_requests
from .variation import has_flips, mixed, varied

__all__ = ["adapt"]

M = TypeVar("M", bound=nn.Module)
MIN_IMAGES = 32
"""Fewer are learnt by heart."""
CHECKPOINT_SECONDS = 60.0
CHECKPOINT = "adapting.pt"


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
        progress: Whether to show a bar on a terminal.

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
    batches = _Batches(images, batch_size, mix, seed)
    teacher = copy.deepcopy(model).eval().requires_grad_(False)
    student = copy.deepcopy(model).eval()  # eval: statistics of norms are as they were
    _lay_out(teacher, torch.channels_last)  # about half the time on a CPU
    _lay_out(student, torch.channels_last)
    trained = [parameter for parameter in student.parameters() if parameter.requires_grad]
    if not trained:
        raise ValueError("all parameters of the model are frozen: call model.requires_grad_(True) first")
    optimizer = torch.optim.AdamW(trained, learning_rate, weight_decay=0.0)

    settings = {
        "model": _weights_digest(model),
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
    checkpoint = _Checkpoint(folder, settings)
    step, seconds = checkpoint.load(student, optimizer)
    budget = 60 * minutes
    saved = seconds
    may_mirror = not has_flips(named)
    comparison: _Comparison | None = None
    bar = progress_bar("adapting (seconds)", round(budget), shown=progress)
    with bar as advance, stop_requests() as stop:
        advance(seconds)
        while seconds < budget and not stop:
            started = time.monotonic()
            x = batches.draw(step, device=trained[0].device, may_mirror=may_mirror)
            if comparison is None:
                with torch.no_grad():
                    try_model(teacher, x[:1])
                head = last_linear(teacher, x[:1]) if features > 0 else None
                comparison = _Comparison(named, outputs, compared, head, features)
            g = _elements(named, len(x), upright, generator(seed, "elements", step))
            loss = comparison.loss(teacher, student, x, g)
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


def _weights_digest(model: nn.Module) -> str:
    """Return a digest of the weights of a model: names, types, shapes and numbers."""
    parts = []
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor):  # a module may add a state of its own
            parts.append(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
            numbers = tensor.detach().cpu().contiguous().flatten()
            parts.append(numbers.view(torch.uint8).numpy().tobytes())  # NumPy has no bfloat16
    return digest(*parts)


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


@dataclass(frozen=True)
class _Comparison:
    """What of the copy is compared with what of the model; see the top of this file."""

    group: Group
    kinds: Kinds
    layers: Mapping[str, float]
    """Layers whose maps are compared, and their weights β."""
    head: str | None
    """The layer whose inputs are compared."""
    features: float
    """Their weight γ."""

    def loss(self, teacher: nn.Module, student: nn.Module, x: Tensor, g: Tensor) -> Tensor:
        """The loss of one step on images (B, C, n, n) under elements (B,)."""
        with (
            torch.no_grad(),
            capture(teacher, self.layers) as maps,
            inputs_of(teacher, self.head) as features,
        ):
            upright = teacher(x)
        with (
            capture(student, self.layers) as moved_maps,
            inputs_of(student, self.head) as moved_features,
        ):
            answers = student(self.group.act(x, g))

        height, width = x.shape[-2:]
        wanted = act_on_outputs(upright, self.kinds, self.group, g, (height, width))
        loss = torch.zeros((), device=x.device)
        # in the order in which the model returns them
        for kind, target, answer in zip(
            kinds_in(upright, self.kinds), tensors_in(wanted), tensors_in(answers), strict=True
        ):
            loss = loss + _distance(target, answer, kind)
        for target, answer in zip(features, moved_features, strict=True):
            loss = loss + self.features * _distance(target, answer, "invariant")
        for name, weight in self.layers.items():
            error = mean_error(
                maps[name], moved_maps[name], self.group, g, normalize=True, layer=f"layer {name!r}"
            )
            loss = loss + weight * error
        return loss


def _distance(target: Tensor, answer: Tensor, kind: Kind) -> Tensor:
    """KL divergence of scores over dim 1, or the relative squared error of anything else."""
    of_classes = kind == "scores" or (kind == "map" and target.shape[1] > 1)
    if of_classes:
        # KL(p, q) = Σ p (log p - log q)
        kl = F.kl_div(answer.log_softmax(1), target.log_softmax(1), reduction="none", log_target=True)
        return kl.sum(1).mean()
    return (answer - target).square().mean() / target.square().mean().clamp(min=1e-12)


class _Batches:
    """Random batches of images, varied a little; the same for the same seed and step."""

    def __init__(self, images: Images, batch_size: int, mix: float, seed: int) -> None:
        check_images(images)
        if isinstance(images, Iterator):
            raise ValueError(
                "images can be gone through only once: pass a tensor, a list of batches or a DataLoader"
            )
        self.images = images
        self.batch_size = batch_size
        self.mix = mix
        self.seed = seed
        self._waiting: Iterator[Tensor] | None = None
        self._count = 0  # images in the first pass over batches
        if isinstance(images, Tensor):
            for x in checked_batches(images, batch_size):
                check_floating(x)
            check_square(images)
            _check_count(len(images))

    def draw(self, step: int, device: torch.device, may_mirror: bool) -> Tensor:
        """Return a batch (B, C, n, n) on ``device``."""
        draws = generator(self.seed, "images", step)
        if isinstance(self.images, Tensor):
            chosen = torch.randint(len(self.images), (self.batch_size,), generator=draws)
            x = self.images[chosen]
        else:
            x = self._next()
            check_floating(x)
            check_square(x)
        # in random order, so that no kind of image always gets the same element
        x = x[torch.randperm(len(x), generator=draws)]
        x = mixed(varied(x.to(device), may_mirror, draws), self.mix, draws)
        return x.contiguous(memory_format=torch.channels_last)

    def _next(self) -> Tensor:
        """The next batch of the user's, from the beginning again after the last one."""
        x = None
        if self._waiting is not None:
            x = next(self._waiting, None)
        if x is None:
            if self._waiting is not None:
                _check_count(self._count)
            self._waiting = checked_batches(self.images, self.batch_size)
            x = next(self._waiting, None)
        if x is None:
            raise ValueError("there are no images to adapt to")
        self._count += len(x)
        return x


def _check_count(count: int) -> None:
    if count < MIN_IMAGES:
        raise ValueError(
            f"{count} images are too few to adapt to: use {MIN_IMAGES} or more, better thousands"
        )


class _Checkpoint:
    """The state of training in a file of a folder; without a folder, nothing is kept."""

    def __init__(self, folder: str | PathLike[str] | None, settings: dict[str, Any]) -> None:
        self.path: Path | None = None
        self.settings = settings
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.path = Path(folder) / CHECKPOINT

    def load(self, student: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, float]:
        """Restore the student and its optimizer; return the steps and seconds they had, or zeros.

        Raises:
            ValueError: The file is damaged, or from other settings or another model.
            OSError: It may not be read.
        """
        if self.path is None or not self.path.exists():
            return 0, 0.0
        check_regular(self.path)  # a pipe would be waited for without end
        try:
            state = torch.load(self.path, map_location="cpu", weights_only=True)
            found = state["settings"]
        except OSError:
            raise  # nobody should remove what they may not read
        except Exception as error:  # a damaged file can provoke anything
            raise ValueError(
                f"{self.path} cannot be read ({type(error).__name__}): remove it to begin again"
            ) from error
        for name, wanted in self.settings.items():
            if found.get(name) != wanted:
                if name == "model":
                    raise ValueError(
                        f"{self.path} is of another model, or of one with other weights: use the same, or "
                        f"another folder"
                    )
                raise ValueError(
                    f"{self.path} was made with {name}={found.get(name)}, not {wanted}: use the same, or "
                    f"another folder"
                )
        try:
            student.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            return int(state["step"]), float(state["seconds"])
        except Exception as error:
            raise ValueError(
                f"{self.path} is of another model ({type(error).__name__}): use another folder"
            ) from error

    def save(self, student: nn.Module, optimizer: torch.optim.Optimizer, step: int, seconds: float) -> None:
        """Replace the file."""
        if self.path is None:
            return
        state = {
            "settings": self.settings,
            "model": student.state_dict(),
            "optimizer": optimizer.state_dict(),
            "step": step,
            "seconds": seconds,
        }
        replace_file(self.path, lambda path: torch.save(state, path))


def _check(model: object, minutes: float, outputs: object, learning_rate: float, features: float) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"adapt needs a torch.nn.Module; got a {type(model).__name__}")
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
