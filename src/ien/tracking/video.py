"""Video: from files, folders and clips to frames, and from frames, with what a tracker saw, to files."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .data.boxes import Array
from .data.clips import Clip
from .data.crops import Image, check_image
from .data.frames import Files, image_names, read_frame
from .drawing import annotate
from .trajectory import Step, Track, TrackerLike, follow, gather

__all__ = ["Footage", "Recording", "footage", "record", "write_video"]

FPS = Fraction(30)
"""Of images, which have no rate of their own."""
ENCODERS = {"libx264": "H.264", "libopenh264": "H.264", "mpeg4": "MPEG-4 part 2"}
"""In the order in which they are tried; the last is in every build of FFmpeg."""


@dataclass(frozen=True)
class Footage:
    """Frames (H, W, 3) uint8 RGB to iterate over, as often as wanted; each time they are read again."""

    name: str
    fps: Fraction
    count: int | None
    """How many there are, as far as the file says."""
    read: Callable[[], Iterator[Image]]

    def __iter__(self) -> Iterator[Image]:
        return self.read()

    def first(self) -> Image:
        """The first frame: what a box is drawn on."""
        return next(iter(self))


class Recording(NamedTuple):
    """What :func:`record` made."""

    track: Track
    codec: str
    """Of the video it wrote, such as ``H.264 (libx264)``."""


def footage(source: str | os.PathLike[str] | Clip, fps: float | None = None, start: int = 0) -> Footage:
    """The frames of a video file, of a folder with numbered images in it or in its ``img``, or of a clip.

    ``fps`` is for images, and 30 by default; a video has its own. The first ``start`` frames are left out. A
    video that is to be shown turned, as from a telephone, is turned. One that ends early gives the frames it
    has, and a warning that says how many.
    """
    if isinstance(source, Clip):
        clip, places = source, range(len(source))
        _check_start(clip.name, start, len(clip))
        return Footage(clip.name, _rate(fps), len(clip) - start, lambda: map(clip.frame, places[start:]))
    path = Path(source).expanduser()
    if path.is_dir():
        return _folder(path, fps, start)
    if not path.exists():
        raise FileNotFoundError(f"there is no video or folder {path}")
    if fps is not None:
        raise ValueError(f"{path} is a video and has its own frame rate: leave fps out")
    with _opened(path) as container:
        stream = _stream(path, container)
        rate = Fraction(stream.average_rate or stream.guessed_rate or FPS)
        count, exact = _count(container, stream, rate)
        _check_start(str(path), start, count if exact else None)
        left = None if count is None else max(count - start, 1)
        return Footage(path.stem, rate, left, lambda: _decoded(path, start))


def write_video(path: str | os.PathLike[str], frames: Iterable[Image], fps: float | Fraction = FPS) -> str:
    """Write frames as an mp4 file, there whole or not at all; says with which codec, H.264 where it can be.

    An odd last row or column is shown twice: these codecs need even sizes.
    """
    av, place = _av(), Path(path).expanduser()
    if place.suffix.lower() != ".mp4":
        raise ValueError(f"videos are written as mp4; got {place.name}: name it {place.stem or 'video'}.mp4")
    encoder = next(name for name in ENCODERS if _can_write(av, name))
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        _encode(av, part, iter(frames), encoder, _rate(fps))
        os.replace(part, place)
    except av.FFmpegError as error:
        raise OSError(f"{place} could not be written as {ENCODERS[encoder]} ({error})") from error
    finally:
        part.unlink(missing_ok=True)
    return f"{ENCODERS[encoder]} ({encoder})"


def record(
    tracker: TrackerLike,
    source: Footage | Clip | str | os.PathLike[str],
    path: str | os.PathLike[str],
    box: ArrayLike | None = None,
    show_angle: bool | None = None,
    progress: Callable[[int, int | None], None] | None = None,
    watch: Callable[[Step], None] | None = None,
) -> Recording:
    """Track through a video, folder or clip, and write the video that shows it, at the same frame rate.

    Frames are read, tracked, drawn and written one by one. The label is the tracker's score. The hand that
    shows the angle is drawn if ``show_angle``; by default, where the tracker tries several rotations.
    ``progress(frames_done, frames_total)`` is called after each frame, and ``watch`` with what it showed.
    """
    if isinstance(source, Clip) and box is None:
        box = source.boxes[0]
    seen = source if isinstance(source, Footage) else footage(source)
    turns = getattr(tracker, "rotations", 1) > 1 if show_angle is None else show_angle
    rows: list[tuple[Array, float, float, float]] = []

    def drawn() -> Iterator[Image]:
        for step in follow(tracker, seen, box):
            angle = step.angle if turns else None
            label = f"{step.score:.2f}" + (f"  {step.angle:.0f}°" if turns else "")
            rows.append(step[1:])
            yield annotate(step.image, step.box, angle, label)
            if watch:
                watch(step)
            if progress:
                progress(len(rows), seen.count)

    codec = write_video(path, drawn(), seen.fps)
    return Recording(gather(rows), codec)


def _folder(path: Path, fps: float | None, start: int) -> Footage:
    inside = path / "img" if not image_names(path) and (path / "img").is_dir() else path
    names = image_names(inside)
    if not names:
        raise FileNotFoundError(f"{path} holds no images: frames are files such as 0001.jpg")
    _check_start(str(path), start, len(names))
    files = Files(str(inside), np.array(names[start:]))
    return Footage(
        path.resolve().name,
        _rate(fps),
        len(files),
        lambda: (read_frame(files[i]) for i in range(len(files))),
    )


def _decoded(path: Path, start: int) -> Iterator[Image]:
    av = _av()
    given = damaged = 0
    with _opened(path) as container:
        stream = _stream(path, container)
        packets = iter(container.demux(stream))
        while True:
            try:
                packet = next(packets, None)
                frames = [] if packet is None else packet.decode()
            except av.FFmpegError:
                damaged += 1
                if damaged > 100:  # a file system that fails does so for ever
                    break
                continue
            if packet is None:
                break
            for frame in frames:
                given += 1
                if given > start:
                    yield _pixels(frame)
        rate = Fraction(stream.average_rate or stream.guessed_rate or FPS)
        expected, exact = _count(container, stream, rate)
    if not given:
        raise ValueError(f"no frame of {path} decodes: the file is damaged or cut off; copy it again")
    if damaged or (expected is not None and given < expected - (0 if exact else 2)):
        of = "" if expected is None else f" of {expected}"
        broken = f", and {damaged} of its packets are damaged" if damaged else ""
        warnings.warn(f"{path} gave {given}{of} frames: it ends early{broken}", stacklevel=2)
    _check_start(str(path), start, given)


def _pixels(frame: Any) -> Image:
    """RGB, turned as it is to be shown."""
    image = frame.to_ndarray(format="rgb24")
    return np.ascontiguousarray(np.rot90(image, round(frame.rotation / 90)))


def _count(container: Any, stream: Any, rate: Fraction) -> tuple[int | None, bool]:
    """How many frames the header says there are, and whether it says so itself or by its duration."""
    if stream.frames:
        return int(stream.frames), True
    if container.duration:
        return max(1, round(container.duration * rate / 1_000_000)), False
    return None, False


def _opened(path: Path) -> Any:
    av = _av()
    try:
        return av.open(str(path))
    except av.FFmpegError as error:
        reason = error.strerror or error
        raise ValueError(
            f"{path} does not decode as a video ({reason}): it is none, "
            f"or its end, where the index may be, is missing"
        ) from error


def _stream(path: Path, container: Any) -> Any:
    """The first video stream that is not a cover picture."""
    for stream in container.streams.video:
        if "attached_pic" not in str(stream.disposition.name or ""):
            if stream.codec_context is None:  # to decode it would end the process
                raise ValueError(f"{path} has video of an unknown kind, or is cut off at its beginning")
            return stream
    kinds = ", ".join(sorted({stream.type for stream in container.streams})) or "nothing"
    raise ValueError(f"{path} has no video stream, only {kinds}: it is no video, or is cut off")


def _encode(av: Any, path: Path, frames: Iterator[Image], encoder: str, rate: Fraction) -> None:
    try:
        first = next(frames)
    except StopIteration:
        raise ValueError("there are no frames to write: give at least one") from None
    check_image(first)
    rows, columns = first.shape[:2]
    with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as container:
        stream = container.add_stream(encoder, rate=rate)
        stream.width, stream.height, stream.pix_fmt = columns + columns % 2, rows + rows % 2, "yuv420p"
        if encoder == "libx264":
            stream.options = {"crf": "18", "preset": "veryfast"}
        else:  # others have no constant quality: half a bit a pixel, more for a small frame
            stream.bit_rate = max(2_000_000, round(rows * columns * rate / 2))
        for index, image in enumerate(chain([first], frames)):
            check_image(image)
            if image.shape != first.shape:
                raise ValueError(
                    f"frame {index + 1} has {image.shape[1]}×{image.shape[0]} pixels and the first "
                    f"{columns}×{rows}: the frames of a video are of one size"
                )
            even = np.pad(image, ((0, rows % 2), (0, columns % 2), (0, 0)), "edge")
            container.mux(stream.encode(av.VideoFrame.from_ndarray(even, format="rgb24")))
        container.mux(stream.encode())


def _can_write(av: Any, name: str) -> bool:
    try:
        av.Codec(name, "w")
    except ValueError:  # of which UnknownCodecError is one
        return False
    return True


def _check_start(name: str, start: int, count: int | None) -> None:
    if start < 0 or (count is not None and start >= count):
        last = "0 or more" if count is None else f"0 to {count - 1}"
        raise ValueError(f"the frames of {name} are counted from 0, so start is {last}; got {start}")


def _rate(fps: float | Fraction | None) -> Fraction:
    if fps is None:
        return FPS
    if not 0 < fps <= 1000:
        raise ValueError(f"fps is the number of frames a second, above 0, such as 30; got {fps}")
    return Fraction(fps).limit_denominator(1001)  # as in 30000/1001; some encoders take no larger one


def _av() -> Any:
    try:
        return importlib.import_module("av")
    except ModuleNotFoundError:
        raise ModuleNotFoundError('reading and writing videos needs av: pip install "ien[track]"') from None
