"""The commands ``ien data``: which data sets are there, and how to get those that are not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._text import nearest
from .commands import Commands
from .options import AsJson, Quiet, print_json

if TYPE_CHECKING:
    from ..data.download import RemoteFile

__all__ = ["app"]

app = Commands("See which data sets are there, and get or make those that are not.")

Folder = Annotated[
    str | None,
    typer.Option("--data", metavar="DIR", help="The data folder.", show_default="$IEN_DATA, else ./data"),
]


@app.command("list")
def list_(data: Folder = None, as_json: AsJson = False) -> None:
    """Show which data sets are there and which are missing, with sizes, and what is cached.

    Example: ien data list --data ~/data
    """
    from ..data.cache import cache_folder
    from ..data.dataset import data_folder
    from .data_sets import data_sets, lines_of_all, size_text

    folder = data_folder(data)
    cache = cache_folder()
    cached = sum(path.stat().st_size for path in cache.glob("*.safetensors"))
    if as_json:
        print_json(
            {
                "data_folder": str(folder),
                "cache_folder": str(cache),
                "cache_bytes": cached,
                "data_sets": data_sets(folder),
            }
        )
        return
    note = ""
    if not folder.is_dir():
        note = " (does not exist)"
    typer.echo(f"data folder: {folder}{note}")
    for name, what, state, _ in lines_of_all(folder):
        typer.echo(f"{name:<15} {what:<27} {state}")

    used = "empty"
    if cached:
        used = size_text(cached)
    typer.echo(f"cache folder: {cache} ({used})")


@app.command()
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The data set: mnist, tiny-imagenet or stl10.")],
    data: Folder = None,
    quiet: Quiet = False,
) -> None:
    """Download a data set into the data folder and check it.

    A download that was cut short is continued. Files that are there already are checked and left
    alone. The archives of Tiny ImageNet and STL-10 are unpacked and can be deleted afterwards;
    the 100,000 images of STL-10 without labels are not unpacked.

    Example: ien data get mnist --data ~/data
    """
    from ..data.dataset import data_folder
    from .data_sets import ARCHIVES, DOWNLOADS, mnist_folder, size_text

    if name not in DOWNLOADS:
        raise ValueError(f"there is nothing to download for {name!r}; {nearest(name, DOWNLOADS)}")
    if data == "embedded":
        raise ValueError("the embedded digits come with the installation: there is nothing to download")
    folder = data_folder(data)
    files = DOWNLOADS[name]
    if name in ARCHIVES:
        _get_archive(name, files, folder)
        return
    place = mnist_folder(folder) or folder / "mnist"  # complete a folder that is there already
    _download(files, place)
    total = sum(file.size for file in files)
    typer.echo(f"{name}: {len(files)} files in {place}, {size_text(total)}, checked")


@app.command("rot-otb")
def rot_otb(
    source: Annotated[
        Path, typer.Argument(metavar="SRC", help="The folder of OTB's sequences, or a single sequence.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder for the rotating sequences.")],
    rate: Annotated[float, typer.Option(min=0, metavar="N", help="Full turns per second.")] = 0.5,
    fps: Annotated[float, typer.Option(metavar="N", help="Frames per second of the sequences.")] = 30,
    names: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these sequences.", show_default="all")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write Rot-OTB: the sequences of OTB with rotating frames, in the same layout, and angles.txt.

    Sequences that are there already, made with the same options, are left alone. You need these
    files for other tools only: training and testing rotate the frames as they read them.

    Example: ien data rot-otb data/otb data/rot-otb

    Example: ien data rot-otb data/otb slow --rate 0.1 --names Crossing,Couple
    """
    from .clips import write_rotating

    typer.echo(write_rotating(source, out, rate, fps, names))


def _get_archive(name: str, files: tuple[RemoteFile, ...], folder: Path) -> None:
    """Download and unpack a data set that is published as one archive."""
    from ..data.download import clear_unpacked_part
    from .data_sets import ARCHIVES

    title, module = ARCHIVES[name]
    place = module.place_in(folder)
    clear_unpacked_part(place)
    if not place.exists():
        _download(files, place.parent)
        _unpack(name, place.parent / files[0].name, place.parent)
    found = module.find(place.parent)  # checks it too
    if not found.whole:  # somebody made a smaller one on purpose: leave it alone
        raise ValueError(
            f"{place} is only a part of {title} ({found}): use it as it is, or move or delete it and "
            f"run this again to get the whole"
        )
    typer.echo(f"{name}: {found} in {place}")


def _download(files: tuple[RemoteFile, ...], place: Path) -> None:
    from .._text import progress_bar
    from ..data.download import download_all

    downloaded: dict[RemoteFile, int] = {}
    total = sum(file.size for file in files)
    with progress_bar("downloading", total, "bytes") as advance:

        def report(file: RemoteFile, done: int) -> None:
            # one bar for all files: it advances by what is new of this one
            advance(done - downloaded.get(file, 0), file.name)
            downloaded[file] = done
            if done == file.size:
                typer.echo(f"{file.name}: {file.size:,} bytes")

        download_all(files, place, report)


def _unpack(name: str, archive: Path, folder: Path) -> None:
    from .._text import progress_bar
    from .data_sets import ARCHIVES

    _, module = ARCHIVES[name]
    percent = 0.0  # some archives count files, others bytes
    with progress_bar("unpacking", 100) as advance:

        def report(done: int, total: int) -> None:
            nonlocal percent
            now = 100 * done / max(total, 1)
            advance(now - percent)
            percent = now

        module.unpack(archive, folder, report)
