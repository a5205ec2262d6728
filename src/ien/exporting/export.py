"""export: a trained model → a file, which is kept only if it does what the model does."""

from __future__ import annotations

import importlib.metadata
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .._files import replace_file, seeded, workplace
from .._text import MODEL_ITSELF, number, type_name
from ..adapting.canonicalize import Canonicalize
from ..adapting.outputs import Kind, Kinds, act_on_outputs, check_kinds, kinds_in
from ..groups.families import group as named_group
from ..groups.families import rotation
from ..groups.group import Group
from ..loss.modules import tensors_in, unwrapped
from ..measuring.inputs import checked_batches, try_model
from ..tying.tie import plain_copy
from .check import Views, compare_versions, difference, run_under_all
from .formats import ONNX, PROGRAM, Format, check_packages, check_place, format_of
from .program import exported_program
from .quantize import quantize
from .result import INT8, Exported
from .runtimes import MAX_REASON_LENGTH, OnnxModel, OpenVinoModel, has_openvino, program_model, weights_model
from .write import write_onnx, write_program, write_weights

__all__ = ["export"]

TOLERANCE = 1e-4
"""The largest difference that is taken for rounding, as a share of the largest output."""
MODEL = "model"
"""What the model itself is called in the table."""
NOT_NEEDED = ("openvino",)
"""Runtimes that a file is tried in where they are installed, and kept if they cannot read it."""
HEADER_FORMAT = 1


def export(
    model: nn.Module,
    path: str | PathLike[str],
    example: Tensor,
    group: Group | str | None = "rot4",
    *,
    labels: Tensor | None = None,
    outputs: Kinds | Literal["auto"] = "auto",
    int8: Tensor | None = None,
    any_size: bool = False,
    tolerance: float = TOLERANCE,
    opset: int | None = None,
    about: Mapping[str, Any] | None = None,
) -> Exported:
    """Write a trained model as ONNX, as torch.export's program or as weights, and check the file.

    The model is copied, made plain if it is tied, and put into eval mode; it stays as it is. The
    file takes any number of images. It is run in its own runtime (ONNX: onnxruntime, and openvino
    where installed) on the images and on random numbers, under every element of the group, and kept
    only if it returns what the model returns.

    Not for a model that branches on the values of its images, such as :class:`Canonicalize`: such
    a program cannot be exported.

    Args:
        model: Any module that takes images alone.
        path: The file, whose suffix is the format: .onnx, .pt2 or .safetensors.
        example: Images (N, C, H, W) as the model will see them, to check with; better a hundred.
        group: Under which transformations it is checked, such as ``"rot4"``; None for none.
        labels: The classes of the images (N,), to add the accuracy to the table.
        outputs: How what it returns changes with the image, as in :class:`GroupAverage`. ``"auto"``
            takes (B, C, H, W) for maps and anything else for invariant.
        int8: Calibration images, other than ``example``: the ONNX file then computes in int8, and
            the table shows what that costs. By default it stays in float32.
        any_size: Let height and width change too, for a model without layers of fixed size.
        tolerance: The largest difference to accept, as a share of the largest output.
        opset: The version of ONNX's operators; by default torch's choice.
        about: What else the header of the file should say, as JSON can hold it.

    Returns:
        A table of the model beside its file, which prints; ``result.difference`` is the largest.

    Raises:
        ValueError: A suffix, an image or a model that cannot be exported, named with its layer; or
            a file that does something else than the model. Nothing is written then.
        ModuleNotFoundError: A package for ONNX is missing.
        OSError: The file could not be written; an earlier one is untouched.

    >>> net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> images = torch.rand(4, 1, 9, 9)
    >>> result = export(net, "net.pt2", images)  # doctest: +SKIP
    >>> result.difference < 1e-6  # doctest: +SKIP
    True
    """
    path = Path(path).expanduser()
    wanted = format_of(path)
    check_packages(wanted)
    _check_arguments(model, example, labels, int8, outputs, wanted)
    _check_numbers(tolerance, opset, wanted)
    check_place(path)
    acting = None if group is None else named_group(group)

    _check_lazy(model)
    plain = plain_copy(unwrapped(model)).cpu().eval().requires_grad_(False)
    images = example.detach().cpu().contiguous()
    with torch.no_grad():
        returned = try_model(plain, images[:2].clone(), images_alone=True)
    kinds = _kinds(returned, outputs, images[:2])
    expected = run_under_all(plain, images, acting)
    _check_finite(expected, path, "these images")
    _check_classes(labels, expected[0][0])
    shapes = tuple(tuple(tensor.shape[1:]) for tensor in expected[0])
    _, *size = images.shape
    header = {
        "format": HEADER_FORMAT,
        "size": size,
        "any_size": any_size,
        "outputs": shapes,
        "int8": int8 is not None,
        "versions": {"ien": _version("ien"), "torch": torch.__version__},
        **(about or {}),
    }
    # what a killed export leaves in the system's temporary folder is removed by the next one
    with workplace(Path(tempfile.gettempdir()), mode=0o700) as folder:
        place = folder / path.name
        opset = _write(plain, place, wanted, images, header, any_size, opset)
        versions: dict[str, tuple[nn.Module, Views]] = {MODEL: (plain, expected)}
        runtimes: dict[str, str] = {}
        unread: dict[str, str] = {}
        random_difference = 0.0
        for name, open_file in _runtimes(place, wanted, plain).items():
            try:
                module = open_file()
                found = run_under_all(module, images, acting)
            except ValueError as error:
                reason = str(error).replace(str(place), path.name)  # it is not in place yet
                if name not in NOT_NEEDED:
                    raise _unreadable(path, reason, images) from error
                unread[name] = reason
                continue
            on_random = _difference_on_random(plain, module, images, any_size, path)
            worst = max(difference(found, expected), on_random, key=_badness)
            if not worst <= tolerance:  # NaN too
                raise ValueError(
                    f"{path} was not written: in {name} its outputs differ from the model's by "
                    f"{_readable(worst)} of the largest, and the tolerance is {tolerance:g}: look for layers "
                    f"that are random in eval mode, or accept it with a larger tolerance"
                )
            random_difference = max(random_difference, on_random)
            versions[name] = (module, found)
            runtimes[name] = _version(name)
        if int8 is not None:
            float_file = place.with_name(f"float-{place.name}")
            place.rename(float_file)
            quantize(float_file, int8.detach().cpu().contiguous(), place)
            smaller = OnnxModel(place)
            versions[INT8] = (smaller, run_under_all(smaller, images, acting))
        compared = compare_versions(versions, images, labels, acting, kinds)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(
                f"{path} could not be written: there is no folder {path.parent}, and none can be made"
            ) from error
        replace_file(path, lambda temporary: shutil.copyfile(place, temporary))
    channels, height, width = size
    return Exported(
        path=path,
        format=wanted.name,
        opset=opset,
        size=(channels, height, width),
        any_size=any_size,
        outputs=shapes,
        group=None if acting is None else str(acting),
        num_images=len(images),
        random_difference=random_difference,
        versions=compared,
        runtimes=runtimes,
        unread=unread,
        megabytes=path.stat().st_size / 1e6,
        calibrated_on=None if int8 is None else len(int8),
        code=_code(about or {}),
    )


def _write(
    plain: nn.Module,
    place: Path,
    wanted: Format,
    images: Tensor,
    header: Mapping[str, Any],
    any_size: bool,
    opset: int | None,
) -> int | None:
    """Write the file, before it is checked; returns the opset of an ONNX file."""
    if wanted not in (ONNX, PROGRAM):
        write_weights(plain, place, header)
        return None
    two = images[:1].expand(2, -1, -1, -1).clone()  # of a single image torch would fix the number
    program = exported_program(plain, two, any_size)
    if wanted is PROGRAM:
        write_program(program, place, header)
        return None
    written = write_onnx(program, plain, place, header, opset, any_size)
    if opset is not None and written != opset:
        raise ValueError(
            f"torch {torch.__version__} writes opset {written} for this model where {opset} is asked for: "
            f"ask for {written}, or leave it to torch"
        )
    if len(list(place.parent.iterdir())) > 1:
        raise ValueError(
            f"{place.name} would be larger than the 2 GB that ONNX has room for: export it as "
            f"{place.with_suffix('.pt2').name}"
        )
    return written


def _runtimes(place: Path, wanted: Format, plain: nn.Module) -> dict[str, Callable[[], nn.Module]]:
    """Return what opens a file, by the package that runs it; what is needed comes first."""
    if wanted is PROGRAM:
        return {"torch": partial(program_model, place)}
    if wanted is not ONNX:
        return {"torch": partial(weights_model, place, plain)}
    found: dict[str, Callable[[], nn.Module]] = {"onnxruntime": partial(OnnxModel, place)}
    if has_openvino():
        found["openvino"] = partial(OpenVinoModel, place)
    return found


def _difference_on_random(
    plain: nn.Module, module: nn.Module, images: Tensor, any_size: bool, path: Path
) -> float:
    """Return the largest difference on random numbers, in batches of one and three images."""
    low, high = images.aminmax()
    rng = seeded(0)
    _, channels, height, width = images.shape
    shapes = [(1, channels, height, width), (3, channels, height, width)]
    if any_size:
        shapes.append((1, channels, 2 * height, 2 * width))
    largest = 0.0
    for shape in shapes:
        x = low + (high - low) * torch.rand(shape, generator=rng, dtype=images.dtype)
        try:
            expected = run_under_all(plain, x, None)
        except Exception as error:  # whatever the model raises
            raise _works_for_some(path, x, images, error) from error
        _check_finite(expected, path, "random numbers in the range of these images")
        gap = difference(run_under_all(module, x, None), expected)
        largest = max(largest, gap, key=_badness)
    return largest


def _check_finite(expected: Views, path: Path, images: str) -> None:
    """Raise a ValueError if the model itself returns NaN: no file can be compared with that."""
    for tensors in expected:
        if not all(tensor.isfinite().all() for tensor in tensors):
            raise ValueError(
                f"{path} was not written: the model itself returns NaN or infinity for {images}, in "
                f"eval mode on the CPU; are its weights trained, and images scaled as it expects?"
            )


def _works_for_some(path: Path, x: Tensor, images: Tensor, error: Exception) -> ValueError:
    """Return an error that says for which number or size of images the model fails."""
    reason = " ".join(str(error).split())[:MAX_REASON_LENGTH]
    wanted = "any number of images"
    given = "a single image" if len(x) == 1 else f"{len(x)} images"
    if x.shape[2:] != images.shape[2:]:
        wanted = "images of any size, because of any_size"
        given = f"images of {x.shape[2]}×{x.shape[3]}"
    return ValueError(
        f"{path} was not written: the file should take {wanted}, and the model fails on {given} "
        f"({type(error).__name__}: {reason})"
    )


def _unreadable(path: Path, reason: str, images: Tensor) -> ValueError:
    """Return an error that says why a runtime cannot run the file."""
    remedy = ""
    if images.dtype != torch.float32:
        name = str(images.dtype).removeprefix("torch.")
        remedy = f": it lacks operations in {name}; export model.float() with images.float()"
    return ValueError(f"{path} was not written: {reason}{remedy}")


def _readable(difference: float) -> str:
    if difference != difference:
        return "NaN"
    return number(difference)


def _code(about: Mapping[str, Any]) -> str | None:
    """Return the code that builds the model again, if the header does not say how."""
    named = about.get("code")
    if "run" in about:
        named = about["run"]["config"]["network"].get("code")
        if not named:
            return None  # a network of ours, in the configuration of a run
    return Path(str(named or "net.py:build")).name


def _badness(value: float) -> float:
    """Order differences: NaN is the worst."""
    return value if value == value else torch.inf


def _check_arguments(
    model: object, example: object, labels: object, int8: object, outputs: Any, wanted: Format
) -> None:
    """Raise an error if an argument cannot be used."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"export needs a torch.nn.Module; got {type_name(model)}")
    for name, module in model.named_modules():
        if isinstance(module, Canonicalize):
            raise ValueError(
                f"layer {name or MODEL_ITSELF!r} (Canonicalize) does not export: it rotates each image by an "
                f"angle of its own; export the model inside it, canonicalize.model, and rotate in your own "
                f"program by what canonicalize.orientation(images) says"
            )
    if outputs != "auto":
        check_kinds(outputs)
    given = {"example": example, "int8": int8}
    if int8 is None:
        del given["int8"]
    for name, images in given.items():
        if not isinstance(images, Tensor):
            raise TypeError(f"{name} must be images (N, C, H, W); got {type_name(images)}")
        if not images.is_floating_point() or images.dtype == torch.bfloat16:
            raise ValueError(f"{name} must be float32, float64 or float16; got {images.dtype}: use .float()")
        if not list(checked_batches(images, max(1, len(images)))):  # also checks dims and values
            raise ValueError(f"{name} holds no images: its shape is {tuple(images.shape)}")
    assert isinstance(example, Tensor)
    if isinstance(int8, Tensor) and int8.shape[1:] != example.shape[1:]:
        raise ValueError(
            f"int8 must be images as large as those of example, {tuple(example.shape[1:])}; "
            f"got {tuple(int8.shape[1:])}"
        )
    if int8 is not None and wanted is not ONNX:
        raise ValueError(f"int8 is for ONNX, and this is {wanted.name}: name the file .onnx")
    if isinstance(int8, Tensor) and int8.shape == example.shape and torch.equal(int8, example):
        raise ValueError(
            "int8 must be other images than example: on those that it was calibrated with, a file looks "
            "better than it is"
        )
    if labels is not None and (not isinstance(labels, Tensor) or labels.shape != (len(example),)):
        shape = tuple(labels.shape) if isinstance(labels, Tensor) else type_name(labels)
        raise ValueError(f"labels must be the classes of the {len(example)} images, (N,); got {shape}")
    if isinstance(labels, Tensor) and (labels.is_floating_point() or labels.is_complex()):
        raise ValueError(f"labels must be classes, whole numbers from 0; got {labels.dtype}: use .long()")


def _check_numbers(tolerance: Any, opset: Any, wanted: Format) -> None:
    """Raise an error if the tolerance or the opset cannot be used."""
    if not isinstance(tolerance, int | float):
        raise TypeError(f"tolerance must be a number; got {type_name(tolerance)}")
    if not tolerance >= 0:  # NaN too
        raise ValueError(f"tolerance must be 0 or more, a share of the largest output; got {tolerance:g}")
    if opset is None:
        return
    if wanted is not ONNX:
        raise ValueError(
            f"opset is for ONNX, and this is {wanted.name}: leave it out, or name the file .onnx"
        )
    if not isinstance(opset, int):
        raise TypeError(f"opset must be an int; got {type_name(opset)}")


def _check_classes(labels: Tensor | None, scores: Tensor) -> None:
    """Raise a ValueError if labels are none of the classes that the model tells apart."""
    if labels is None:
        return
    if scores.ndim != 2 or scores.shape[1] < 2:
        shape = ", ".join(["B", *map(str, scores.shape[1:])])
        raise ValueError(
            f"labels are for scores (B, classes), and the model returns ({shape}): leave them out"
        )
    low, high = map(int, labels.aminmax())
    classes = scores.shape[1]
    if low < 0 or high >= classes:
        raise ValueError(
            f"labels must be from 0 to {classes - 1}, as the model has {classes} classes; got {low} to {high}"
        )


def _check_lazy(model: nn.Module) -> None:
    """Raise a ValueError if a layer has no numbers before it runs."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            raise ValueError(
                f"layer {name.rpartition('.')[0] or MODEL_ITSELF!r} is lazy and has no weights yet: run the "
                f"model on a few images once, or load its weights"
            )


def _kinds(returned: Any, outputs: Kinds | Literal["auto"], images: Tensor) -> list[Kind]:
    """Return how each tensor that the model returns for these images changes with them."""
    tensors = list(tensors_in(returned))
    if not tensors:
        raise ValueError(f"the model should return tensors; it returned {type_name(returned)}")
    if outputs != "auto":
        # the identity only checks that each tensor has the shape of its kind
        g = torch.zeros(len(images), dtype=torch.int64)
        height, width = images.shape[-2:]
        act_on_outputs(returned, outputs, rotation(1), g, (height, width))
        return kinds_in(returned, outputs)
    kinds: list[Kind] = []
    for tensor in tensors:
        kinds.append("map" if tensor.ndim == 4 else "invariant")
    return kinds


def _version(package: str) -> str:
    if package == "torch":
        return torch.__version__
    if package == "ien":
        from .. import __version__  # ien imports this file, so not at the top

        return __version__
    return importlib.metadata.version(package)
