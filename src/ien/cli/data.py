"""The commands ``ien data``: which data sets are there, and getting or making those that are not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from .._text import nearest
from ..data import digits, mnist, rot_mnist, rot_tim, scale_mnist, stl10, tiny_imagenet
from ..data.cache import cache_folder
from ..data.dataset import data_folder
from ..data.download import RemoteFile, download_all, md5
from ..data.progress import progress_bar
from .clips import clip_lines, rot_otb
from .errors import one_line_errors

app = typer.Typer(help="Data sets: what is there, and getting or making what is not.", no_args_is_help=True)

DOWNLOADS = {"mnist": mnist.FILES, "tiny-imagenet": (tiny_imagenet.ARCHIVE,), "stl10": (stl10.ARCHIVE,)}
UNPACKED: dict[str, tuple[str, ModuleType]] = {
    "tiny-imagenet": ("Tiny ImageNet", tiny_imagenet),
    "stl10": ("STL-10", stl10),
}
"""Those that are published as one archive."""

Folder = Annotated[
    str | None,
    typer.Option("--data", metavar="DIR", help="The data folder.", show_default="$IEN_DATA, else ./data"),
]


@app.command()
def get(
    name: Annotated[str, typer.Argument(help=f"The data set: {', '.join(DOWNLOADS)}.")], data: Folder = None
) -> None:
    """Download a data set into the data folder and check it.

    A download that was cut short is continued. Files that are there are checked and left as they are. The
    archives of Tiny ImageNet and STL-10 are unpacked; after that they are not needed any more. The 100,000
    images of STL-10 that have no labels are not unpacked.

    Example: ien data get mnist --data ~/data
    """
    with one_line_errors():
        if name not in DOWNLOADS:
            raise ValueError(f"there is nothing to download for {name!r}; {nearest(name, DOWNLOADS)}")
        if data == "embedded":
            raise ValueError("the embedded digits come with the installation: there is nothing to download")
        folder, files = data_folder(data), DOWNLOADS[name]
        if name in UNPACKED:
            return _get_unpacked(name, files, folder)
        place = _find(folder) or folder / "mnist"
        _download(files, place)
        typer.echo(
            f"{name}: {len(files)} files in {place}, {_size(sum(file.size for file in files))}, checked"
        )


@app.command("list")
def list_(data: Folder = None) -> None:
    """Show which data sets are known, found and missing, with sizes, and what is cached.

    Example: ien data list --data ~/data
    """
    with one_line_errors():
        folder = data_folder(data)
        typer.echo(f"data folder: {folder}{'' if folder.is_dir() else ' (does not exist)'}")
        for lines in (
            _mnist_lines,
            _rot_mnist_lines,
            _scale_mnist_lines,
            _tiny_imagenet_lines,
            _stl10_lines,
            clip_lines,
            _embedded_lines,
        ):
            for first, second, third in lines(folder):
                typer.echo(f"{first:<15} {second:<27} {third}")
        cache = cache_folder()
        kept = sum(path.stat().st_size for path in cache.glob("*.safetensors"))
        typer.echo(f"cache folder: {cache} ({_size(kept) if kept else 'empty'})")


app.command("rot-otb")(rot_otb)


Line = tuple[str, str, str]


def _mnist_lines(folder: Path) -> Iterator[Line]:
    place = _find(folder) or folder / "mnist"
    states = {file: _state(file, place / file.name) for file in mnist.FILES}
    found = sum(state == "found" for state in states.values())
    remedy = "" if found == len(states) else f": ien data get mnist --data {folder}"
    yield "mnist", _size(sum(f.size for f in states)), f"{found} of {len(states)} files in {place}{remedy}"
    for file, state in states.items():
        yield "", file.name, f"{_size(file.size)}, {state}"


def _rot_mnist_lines(folder: Path) -> Iterator[Line]:
    try:
        original = rot_mnist.find_original(folder)
    except FileNotFoundError as error:
        yield "rot-mnist", "original", f"incomplete: {error}"
        return
    if original:
        yield (
            "rot-mnist",
            "original",
            f"{_size(sum(p.stat().st_size for p in original))} in {original[0].parent}",
        )
    else:
        yield "rot-mnist", "original", f"missing: {', '.join(rot_mnist.ORIGINAL)}"
        yield "", "generated", f"{'made from' if _find(folder) else 'needs'} mnist"
    if original or _find(folder):
        cached = sorted(cache_folder().glob(f"{rot_mnist.cache_name(folder, '*')}.safetensors"))
        for path in cached:
            label = "-".join(path.stem.split("-")[2:-1])  # original, or generated-seed0
            yield "", f"cached {label}", _size(path.stat().st_size)
        if not cached:
            yield "", "cached", "nothing made of these files yet"


def _scale_mnist_lines(folder: Path) -> Iterator[Line]:
    there = _find(folder)
    for name in (scale_mnist.NAME, scale_mnist.ROTATED):
        yield name, "generated", f"{'made from' if there else 'needs'} mnist"
        pattern = scale_mnist.cache_name(folder, "*", name == scale_mnist.ROTATED) if there else "nothing"
        yield from _cached_lines(name, pattern)


def _tiny_imagenet_lines(folder: Path) -> Iterator[Line]:
    file, source = tiny_imagenet.ARCHIVE, None
    try:
        source = tiny_imagenet.find(folder)
        yield "tiny-imagenet", _size(file.size), f"{source} in {source.folder}"
    except (ValueError, OSError) as error:
        yield "tiny-imagenet", _size(file.size), f"{error}"
        yield "", file.name, f"{_size(file.size)}, {_state(file, folder / file.name)}"
    for name in ("rot-tim", "r2-tim"):
        yield name, "generated", "made from tiny-imagenet" if source else "needs tiny-imagenet"
        yield from _cached_lines(name, f"{name}-*-{rot_tim.digest(source)}" if source else "nothing")


def _stl10_lines(folder: Path) -> Iterator[Line]:
    file = stl10.ARCHIVE
    try:
        found = stl10.find(folder)
    except (ValueError, OSError) as error:
        yield "stl10", _size(file.size), f"{error}"
        yield "", file.name, f"{_size(file.size)}, {_state(file, folder / file.name)}"
    else:
        yield "stl10", _size(file.size), f"{found} in {found.folder}"
        yield from _cached_lines("stl10", stl10.cache_name(found, "*"))


def _cached_lines(name: str, pattern: str) -> Iterator[Line]:
    for path in sorted(cache_folder().glob(f"{pattern}.safetensors")):
        label = path.stem.removeprefix(f"{name}-").rpartition("-")[0]  # without the digest
        yield "", "cached", f"{label}, {_size(path.stat().st_size)}"


def _embedded_lines(folder: Path) -> Iterator[Line]:
    try:
        path = digits.find()
    except (ModuleNotFoundError, FileNotFoundError) as error:
        yield "embedded", "5,000 digits", f"missing: {error}"
    else:
        yield "embedded", "5,000 digits", f"{_size(path.stat().st_size)}, found: --data embedded"


def _find(folder: Path) -> Path | None:
    try:
        return mnist.find(folder)
    except FileNotFoundError:
        return None


def _state(file: RemoteFile, path: Path) -> str:
    part = path.with_name(f"{path.name}.part")
    if not path.is_file():
        return f"missing, {_size(part.stat().st_size)} downloaded" if part.is_file() else "missing"
    if path.stat().st_size != file.size:
        return f"damaged: {path.stat().st_size:,} bytes instead of {file.size:,}"
    return "found" if md5(path) == file.md5 else f"damaged: its md5 is not {file.md5}"


def _get_unpacked(name: str, files: tuple[RemoteFile, ...], folder: Path) -> None:
    title, module = UNPACKED[name]
    place = module.place_in(folder)
    if not place.exists():
        _download(files, place.parent)
        _unpack(module, place.parent / files[0].name, place.parent)
    found = module.find(place.parent)
    if not found.whole:
        raise ValueError(
            f"{place} is a part of {title} ({found}): move or delete it and run this again to get the "
            f"whole, or use the part as it is"
        )
    typer.echo(f"{name}: {found} in {place}")


def _unpack(module: ModuleType, archive: Path, folder: Path) -> None:
    from rich.progress import TaskProgressColumn

    with progress_bar(TaskProgressColumn()) as bar:
        task = bar.add_task("unpacking", total=None)
        module.unpack(archive, folder, lambda done, total: bar.update(task, completed=done, total=total))


def _download(files: tuple[RemoteFile, ...], place: Path) -> None:
    from rich.progress import DownloadColumn, TaskID

    with progress_bar(DownloadColumn()) as bar:
        tasks: dict[RemoteFile, TaskID] = {}

        def report(file: RemoteFile, done: int) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file.name, total=file.size)
            bar.update(tasks[file], completed=done)
            if done == file.size and not bar.console.is_terminal:
                typer.echo(f"{file.name}: {file.size:,} bytes")

        download_all(files, place, report)


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"
