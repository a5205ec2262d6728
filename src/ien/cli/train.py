"""The command that trains on a folder of images: train."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .errors import one_line_errors
from .options import Quiet, Settings
from .run import Out, resume_hint

if TYPE_CHECKING:
    from ..training import Config

__all__ = ["train"]


def train(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="A folder of images for each class, or images/ and masks/; in train/ and test/ if you split "
            "them yourself.",
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|CODE",
            help="resnet18, vgg, wide-resnet, unet, or a function that makes yours: net.py:build.",
            show_default="resnet18, or unet with masks",
        ),
    ] = None,
    group: Annotated[
        str,
        typer.Option(help="The symmetry: rot4, rot4xflip, rot8, …; none: an ordinary CNN."),
    ] = "rot4",
    slack: Annotated[
        str,
        typer.Option(
            help="auto: leave the symmetry only if the images ask for it; 0: never; a number: how far."
        ),
    ] = "auto",
    size: Annotated[
        int | None,
        typer.Option(
            metavar="PIXELS",
            min=8,
            max=512,
            help="Scale images to this; the nearest size at which the model is exact is used.",
            show_default="that of the images, up to a limit",
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training images.")] = 30,
    batch_size: Annotated[int, typer.Option(min=2, help="Images in a step.")] = 32,
    width: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Factor on the channels.", show_default="1/8; wide-resnet 1/32; unet 3/4"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights and order.")] = 1,
    name: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="The run folder below --out.", show_default="FOLDER/MODEL-GROUP-seedN"
        ),
    ] = "",
    ignore: Annotated[
        int | None,
        typer.Option(
            metavar="VALUE", min=0, max=255, help="A value in masks to leave out of training and scores."
        ),
    ] = None,
    settings: Settings = None,
    out: Out = Path("runs"),
    device: Annotated[str, typer.Option(help="cpu, cuda, mps or auto.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.", show_default="torch's")] = None,
    quiet: Quiet = False,
) -> None:
    """Train an equivariant network on a folder of your images: classes, or images and masks.

    The weights are tied, so that the network is exactly equivariant, and leave the symmetry only if
    your images ask for it. The middle square of each image is used. Without test/, a fifth is held
    out, drawn by data_seed. The same command again resumes a run that was stopped.

    Example: ien train photos/ --group rot4xflip

    Example: ien train cells/ --model unet --epochs 60

    Example: ien train photos/ --model net.py:build --size 128 --group none

    Example: torchrun --nproc-per-node 2 -m ien train photos/
    """
    # someone else's model may raise the last two
    with resume_hint(), one_line_errors(TypeError, RuntimeError), ExitStack() as stack:
        from ..experiments.own_images import MODELS, Wanted, plan_own, train_own
        from ..training import joined
        from .model_file import given_model

        machine = {"device": device, "threads": threads}
        own: dict[str, Any] = {"model": model}
        if model is not None and model not in MODELS and ":" in model:
            own = stack.enter_context(given_model(model))
        processes = stack.enter_context(joined())
        wanted = Wanted(
            folder,
            **own,
            group=group,
            slack=slack,
            size=size,
            width=width,
            epochs=epochs,
            batch_size=batch_size,
            seed=seed,
            name=name,
            ignore=ignore,
            settings=settings or [],
            machine=machine,
            processes=processes.count,
        )
        planned = plan_own(wanted)
        if processes.first:
            for note in planned.notes:
                typer.echo(note)
        place = out / planned.name
        finished = (place / "result.json").exists()
        record = train_own(planned, folder, out, processes)
        if processes.first:
            if finished:
                typer.echo(f"{place} was finished before: choose another --name to train again")
            typer.echo("\n".join(_summary(planned.config, record, place)))


def _summary(config: Config, record: dict[str, Any], run: Path) -> list[str]:
    """Say what was reached, and what to do next."""
    from ..training import kind_of

    told = dict(kind_of(config).summary(config, record))
    slack = record.get("slack", {})
    if slack:
        most = max(slack, key=lambda layer: slack[layer])
        # with auto, weights are let free only after a test of whether the images ask for it
        if config.objective.slack_value != "auto":
            told["slack"] = f"up to {slack[most]:.2f} ({most}), free from the start"
        elif slack[most]:
            told["slack"] = f"up to {slack[most]:.2f} ({most}): the images prefer an orientation"
        else:
            told["slack"] = "none: the images keep the symmetry"
    code = getattr(config.network, "code", "")
    build, again = "", ""
    if code:
        build, again = ", build", f" --model {code}"
    told["model"] = f'ien.load("{run}"{build}): a plain network'
    if record["layers"]:  # a vision transformer may have none that returns a map
        told["next"] = f"ien report {run}{again} -o report.html: a page to explore"
    width = max(map(len, told))
    return [f"{name:{width}}  {text}" for name, text in told.items()]
