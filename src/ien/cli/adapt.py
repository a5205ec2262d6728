"""The command that makes a trained model equivariant without labels: adapt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from .._text import nearest, printable
from .errors import INTERRUPTED, fail, one_line_errors
from .options import (
    OwnModel,
    Quiet,
    Size,
    Target,
    Weights,
    folder_of,
    is_run,
    layer_names,
    own_model,
    read_size,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..adapting.outputs import Kinds
    from ..groups.group import Group

__all__ = ["adapt"]

AVERAGE = "average"
CANONICALIZE = "canonicalize"
ADAPT = "adapt"
USED_BY = {
    "--steps": CANONICALIZE,
    "--minutes": ADAPT,
    "--layers": ADAPT,
    "--share": ADAPT,
    "--learning-rate": ADAPT,
    "--batch-size": ADAPT,
    "--resume": ADAPT,
}
"""Options of one way alone."""
SUFFIX = ".safetensors"
HELD_OUT = 5
"""Without --test, every fifth image is kept for the table."""
MAX_TESTED = 400
"""Images in the table, so that it takes minutes."""
BATCH_SIZE = 16
"""Images a step, as :func:`ien.adapt` has it."""
TEST_BATCH_SIZE = 32
TRIED = 2
"""Images that the model is tried on before anything takes long."""


def adapt(
    target: Target,
    images: Annotated[
        Path,
        typer.Option(
            "--images",
            metavar="DIR",
            callback=folder_of,
            help="Images in their usual orientation; no labels.",
        ),
    ],
    how: Annotated[
        str, typer.Option("--how", metavar="WAY", help="average, canonicalize or adapt.")
    ] = CANONICALIZE,
    group: Annotated[str, typer.Option("--group", metavar="GROUP", help="Rotations and flips.")] = "rot4",
    weights: Weights = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Where to write what was trained: .safetensors."),
    ] = None,
    size: Size = None,
    outputs: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="What the model returns: scores of classes, map, boxes, points, vectors, angles or "
            "invariant; of a dict key=kind,key=kind.",
        ),
    ] = "scores",
    minutes: Annotated[
        float | None, typer.Option(metavar="N", help="adapt: how many minutes to train.", show_default="10")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Steps of training to canonicalize.", show_default="2000"),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option("--layers", metavar="A,B", help="adapt: compare the maps of these layers, too."),
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="adapt: how far to go to what was learnt, from 0 to 1; with --resume, another one needs no "
            "training.",
            show_default="0.7",
        ),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(metavar="X", help="adapt: the highest.", show_default="0.0001")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="adapt: images in a step.", show_default="16")
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Images for the table.", show_default="a fifth of --images"),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV",
            help="Classes of the images of --test: a line 'file,class_index', then a line for each image, "
            "named by its path in DIR, or by its file name.",
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="DIR", help="adapt: keep a checkpoint here, and go on from it."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random choices.")] = 0,
    model: OwnModel = None,
    quiet: Quiet = False,
) -> None:
    """Make a trained model equivariant, without labels.

    average: exact, nothing is trained; costs as many passes as the group has elements.

    canonicalize: exact; a small network rotates each image upright; takes 7 to 9 % longer.

    adapt: not exact; a copy learns to answer for rotated images as for upright ones.

    It ends with a table of before and after.

    Example: ien adapt net.py:build --images photos/ -o upright.safetensors

    Example: ien adapt net.py:build --images photos/ --how adapt -o up.safetensors

    Example: ien adapt net.py:build --images photos/ --how average --outputs map
    """
    with one_line_errors(TypeError, RuntimeError), own_model(model, [Path(target)]):
        from ..adapting.compare import check_labels, compare
        from ..groups.families import group as named_group
        from ..measuring.image_folder import evenly, find_images, image_batches

        options = {
            "--steps": steps,
            "--minutes": minutes,
            "--layers": layers,
            "--share": share,
            "--learning-rate": learning_rate,
            "--batch-size": batch_size,
            "--resume": resume,
        }
        _check_way(how, out, options)
        acting = named_group(group)
        kinds = _read_kinds(outputs)
        input_size = read_size(size)
        if labels is not None and test is None:
            raise ValueError("--labels belong to the images of --test: add --test DIR")
        if labels is not None and kinds != "scores":
            raise ValueError(
                f"--labels are classes of images, and with --outputs {outputs} there are none: drop it"
            )
        training = find_images(images)
        classes: list[int] | None = None
        if test is None:
            tested = training[::HELD_OUT]
            training = [path for i, path in enumerate(training) if i % HELD_OUT]
        else:
            tested = find_images(test)
        if how != AVERAGE:
            both = {path.resolve() for path in training} & {path.resolve() for path in tested}
            if both:
                note = f"{len(both)} of {len(tested)} images of the table are learnt from, too"
                typer.echo(f"{note}: the table flatters", err=True)
            _check_count(how, len(training), len(tested) if test is None else 0)
        if labels is not None and test is not None:
            from .labels import read_labels

            tested, classes, note = read_labels(labels, test, tested)
            typer.echo(printable(note), err=True)  # names in a table may hold anything
        places = evenly(range(len(tested)), MAX_TESTED)
        tested = [tested[i] for i in places]
        right = _chosen(classes, places)

        original, notes = _original(target, weights)
        for note in notes:
            typer.echo(note, err=True)
        # what would fail after an hour of training fails now
        known = _try(original, training or tested, input_size, how, acting, kinds)
        _try(original, tested, input_size, how, acting, kinds)
        for _ in image_batches(tested, input_size, TEST_BATCH_SIZE):
            pass  # all can be read, and have one size
        if right is not None:
            check_labels(right, known, kinds)
        if out is not None:
            _make_room(out)

        given = {name.removeprefix("--").replace("-", "_"): value for name, value in options.items()}
        given = {name: value for name, value in given.items() if value is not None}
        folder = _Folder(training, input_size, seed, batch_size or BATCH_SIZE)
        with _interrupted(_stopped(resume)):
            version, use = _made(original, how, group, kinds, folder, out, given, seed)
        with _interrupted("stopped before the table; what was trained is written"):
            batches = image_batches(tested, input_size, TEST_BATCH_SIZE)
            typer.echo(str(compare({"original": original, how: version}, batches, acting, right, kinds)))
        typer.echo(use)


def _check_way(how: str, out: Path | None, options: dict[str, Any]) -> None:
    """Refuse an unknown way, and options that it would not use."""
    ways = (AVERAGE, CANONICALIZE, ADAPT)
    if how not in ways:
        raise ValueError(f"there is no --how {how}; {nearest(how, ways)}")
    if how == AVERAGE and out is not None:
        raise ValueError("--how average trains nothing, so there is nothing to write: drop -o")
    for name, value in options.items():
        if value is not None and USED_BY[name] != how:
            raise ValueError(f"{name} is for --how {USED_BY[name]}, and --how {how} does not use it: drop it")
    if how == AVERAGE:
        return
    if out is None:
        raise ValueError(f"say where to write the result: -o {how.removesuffix('e')}ed{SUFFIX}")
    if out.is_dir():
        raise ValueError(f"-o should name a file, and {out} is a folder: -o {out / f'{how}{SUFFIX}'}")
    if out.suffix != SUFFIX:
        raise ValueError(f"-o should end in {SUFFIX}; got {out}: use -o {out.with_suffix(SUFFIX)}")


def _check_count(how: str, training: int, held_out: int) -> None:
    """Refuse to train on a few images before anything runs."""
    from ..adapting.batches import MIN_IMAGES

    if training >= MIN_IMAGES:
        return
    kept = f", and {held_out} held out for the table" if held_out else ""
    raise ValueError(
        f"{training} images to train on{kept}: --how {how} needs {MIN_IMAGES} or more, better thousands, and "
        f"--how average none"
    )


def _read_kinds(text: str) -> Kinds:
    """Read ``--outputs map``, or ``--outputs scores=scores,box=boxes`` for what a dict holds.

    >>> _read_kinds("map"), _read_kinds("scores=scores, box=boxes")
    ('map', {'scores': 'scores', 'box': 'boxes'})
    """
    from ..adapting.outputs import Kind

    known = get_args(Kind)
    if "=" not in text:
        return _known_kind(text.strip(), known)
    kinds = {}
    for part in text.split(","):
        key, equals, kind = part.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"write --outputs map, or --outputs key=kind,key=kind; got {text!r}")
        kinds[key.strip()] = _known_kind(kind.strip(), known)
    return kinds


def _known_kind(kind: str, known: tuple[Any, ...]) -> Any:
    if kind not in known:
        raise ValueError(f"there is no --outputs {kind!r}; {nearest(kind, known)}")
    return kind


def _chosen(classes: list[int] | None, places: list[int]) -> Tensor | None:
    """Return the classes of some of the images."""
    if classes is None:
        return None
    import torch

    return torch.tensor([classes[i] for i in places])


def _original(target: str, weights: Path | None) -> tuple[nn.Module, tuple[str, ...]]:
    """Return the network of a run, or the model that code makes, and what there is to say."""
    if is_run(target, weights):
        from ..training import load

        return load(target), ()
    from .model_file import build_with_weights

    built = build_with_weights(target, weights)
    return built.model.eval(), built.notes


def _try(
    model: nn.Module,
    paths: list[Path],
    size: tuple[int, int, int] | None,
    how: str,
    acting: Group,
    kinds: Kinds,
) -> int | None:
    """Run the model on a few images, as the table will; returns how many classes it knows."""
    from ..adapting.compare import try_under_all
    from ..adapting.outputs import check_square
    from ..measuring.image_folder import image_batches

    x = next(image_batches(paths, size, TRIED))
    if how != AVERAGE:
        check_square(x)
    return try_under_all(model, x, acting, kinds)


def _make_room(out: Path) -> None:
    """Make the folder of a file, and see whether files can be written there."""
    from .._files import workplace

    out.parent.mkdir(parents=True, exist_ok=True)
    with workplace(out.parent):
        pass


def _stopped(resume: Path | None) -> str:
    if resume is None:
        return "stopped; nothing was written"
    return f"stopped; the same command goes on from {resume}"


@contextmanager
def _interrupted(message: str) -> Iterator[None]:
    """Say something after Ctrl-C, and end with its exit code."""
    try:
        yield
    except KeyboardInterrupt:
        fail(message, INTERRUPTED)


def _made(
    model: nn.Module,
    how: str,
    group: str,
    kinds: Kinds,
    folder: _Folder,
    out: Path | None,
    options: dict[str, Any],
    seed: int,
) -> tuple[nn.Module, str]:
    """Return the new version of the model, after writing it, and a line on how to use it."""
    from ..adapting.adapt import adapt as adapt_model
    from ..adapting.average import GroupAverage
    from ..adapting.canonicalize import Canonicalize

    of_kinds = "" if kinds == "scores" else f", outputs={kinds!r}"
    if how == AVERAGE:
        averaged = GroupAverage(model, group, kinds)
        return averaged, f'nothing was trained: use ien.GroupAverage(model, "{group}"{of_kinds})'
    assert out is not None  # checked before anything else
    if how == CANONICALIZE:
        upright = Canonicalize(model, group, kinds).fit(folder, seed=seed, **options)
        upright.save(out)
        return upright, f'wrote {out}: use ien.Canonicalize.load(model, "{out}"{of_kinds})'
    from .._files import write_tensors

    if "layers" in options:
        options["layers"] = layer_names(options["layers"]) or ()
    if "resume" in options:
        options["folder"] = options.pop("resume")
    adapted = adapt_model(model, folder, group, outputs=kinds, seed=seed, **options)
    write_tensors(out, adapted.state_dict())
    return adapted, f"wrote {out}: weights for the same model, under the same names"


class _Folder:
    """The images of a folder in batches, in another order each time."""

    def __init__(
        self, paths: list[Path], size: tuple[int, int, int] | None, seed: int, batch_size: int
    ) -> None:
        self.paths = paths
        self.size = size
        self.seed = seed
        self.batch_size = batch_size
        self.passes = 0

    def __iter__(self) -> Iterator[Tensor]:
        import torch

        from .._files import generator
        from ..measuring.image_folder import image_batches

        order = torch.randperm(len(self.paths), generator=generator(self.seed, "pass", self.passes))
        self.passes += 1
        return image_batches([self.paths[i] for i in order.tolist()], self.size, self.batch_size)
