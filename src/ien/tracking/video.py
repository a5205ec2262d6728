"""Video: frames of a video file, a folder of images or a clip; frames written as a video."""

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

from .._files import whole_or_nothing
from .._text import to_install
from .data.clip import Clip
from .data.crops import Image, check_image
from .data.frames import Files, image_names, read_frame

__all__ = ["Footage", "footage", "write_video"]

DEFAULT_FPS = Fraction(30)
"""Frame rate of images, which have none of their own."""
ENCODERS = {"libx264": "H.264", "libopenh264": "H.264", "mpeg4": "MPEG-4 part 2"}
"""In the order in which they are tried; every build of FFmpeg has the last."""
MAX_DAMAGED_PACKETS = 100
"""Errors after which reading stops: a file system that fails does so forever."""


@dataclass(frozen=True)
class Footage:
    """Frames (H, W, 3) uint8 RGB to iterate over; each time they are read again."""

    name: str
    fps: Fraction
    count: int | None
    """How many there are, as far as the file says; None if it does not."""
    read: Callable[[], Iterator[Image]]

    def __iter__(self) -> Iterator[Image]:
        return self.read()

    def first(self) -> Image:
        """Return the first frame."""
        return next(iter(self))


def footage(source: str | os.PathLike[str] | Clip, fps: float | None = None, start: int = 0) -> Footage:
    """Open a video file, a folder of numbered images, or a clip.

    The images may also be in a folder ``img`` inside. A video that asks to be shown rotated, such
    as one from a phone, is rotated. One that ends early gives the frames it has, and a warning that
    says how many. Do not use it for a camera: it needs a file.

    Args:
        source: Path of a file or a folder, or a clip.
        fps: Frame rate of images, 30 by default; a video has its own.
        start: Number of frames to skip.

    Returns:
        Frames to iterate over, with a name, a frame rate and, if it is known, their number.

    Raises:
        FileNotFoundError: There is no such file, or there are no images in the folder.
        ValueError: The file does not decode as a video, or ``fps`` or ``start`` do not fit it.

    >>> from ien.tracking.data.synthetic import synthetic
    >>> footage(synthetic(0, frames=3), fps=25, start=1).count
    2
    """
    if isinstance(source, Clip):
        return _clip_footage(source, fps, start)
    path = Path(source).expanduser()
    if path.is_dir():
        return _folder_footage(path, fps, start)
    if not path.exists():
        raise FileNotFoundError(f"there is no video or folder {path}")
    if fps is not None:
        raise ValueError(f"{path} is a video and has its own frame rate: leave fps out")
    return _video_footage(path, start)


def write_video(
    path: str | os.PathLike[str], frames: Iterable[Image], fps: float | Fraction = DEFAULT_FPS
) -> str:
    """Write frames as an mp4 file, completely or not at all.

    Codecs need even sizes: an odd last row or column is written twice. They also lose detail; to
    keep every pixel write images, with :func:`ien.tracking.data.rot_otb.write`.

    Args:
        path: The file, which ends in ``.mp4``.
        frames: Each (H, W, 3) uint8 RGB, all of one size.
        fps: Frames a second.

    Returns:
        The codec, H.264 if possible, such as ``H.264 (libx264)``.
    """
    av = _av()
    place = Path(path).expanduser()
    if place.suffix.lower() != ".mp4":
        raise ValueError(f"videos are written as mp4; got {place.name}: name it {place.stem or 'video'}.mp4")
    encoder = next(name for name in ENCODERS if _has_encoder(av, name))
    codec = ENCODERS[encoder]
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        with whole_or_nothing(place) as part:
            _encode(av, part, iter(frames), encoder, _frame_rate(fps))
    except av.FFmpegError as error:
        raise OSError(f"{place} could not be written as {codec} ({error})") from error
    return f"{codec} ({encoder})"


def _clip_footage(clip: Clip, fps: float | None, start: int) -> Footage:
    _check_start(clip.name, start, len(clip))
    indices = range(start, len(clip))
    return Footage(clip.name, _frame_rate(fps), len(indices), lambda: map(clip.frame, indices))


def _folder_footage(path: Path, fps: float | None, start: int) -> Footage:
    folder = path
    # a sequence of OTB has its frames in img/
    if not image_names(path) and (path / "img").is_dir():
        folder = path / "img"
    names = image_names(folder)
    if not names:
        raise FileNotFoundError(f"{path} holds no images: frames are files such as 0001.jpg")
    _check_start(str(path), start, len(names))
    files = Files(str(folder), np.array(names[start:]))

    def read() -> Iterator[Image]:
        for index in range(len(files)):
            yield read_frame(files[index])

    return Footage(path.resolve().name, _frame_rate(fps), len(files), read)


class _Length(NamedTuple):
    """How many frames a video has."""

    frames: int | None
    exact: bool
    """Whether the header gives the number itself, rather than the duration."""


def _video_footage(path: Path, start: int) -> Footage:
    with _open(path) as container:
        stream = _video_stream(path, container)
        length = _length(container, stream)
        rate = _stream_rate(stream)
    # a duration is only an estimate: if that is all there is, the last frame decides
    known = None
    if length.exact:
        known = length.frames
    _check_start(str(path), start, known)
    count = None
    if length.frames is not None:
        count = max(length.frames - start, 1)
    return Footage(path.stem, rate, count, lambda: _decoded(path, start))


def _decoded(path: Path, start: int) -> Iterator[Image]:
    """Yield the frames from ``start`` on; skip damaged packets, and warn if there were any."""
    av = _av()
    given = damaged = 0
    with _open(path) as container:
        stream = _video_stream(path, container)
        length = _length(container, stream)
        packets = iter(container.demux(stream))
        while damaged <= MAX_DAMAGED_PACKETS:
            try:
                packet = next(packets, None)
                if packet is None:
                    break
                frames = packet.decode()
            except av.FFmpegError:
                damaged += 1
                continue
            for frame in frames:
                given += 1
                if given > start:
                    yield _as_rgb(frame)
    # the headers may promise more than the file holds: only now is it known
    if not given:
        raise ValueError(f"no frame of {path} decodes: the file is damaged or cut off; copy it again")
    _warn_if_short(path, given, damaged, length)
    _check_start(str(path), start, given)


def _warn_if_short(path: Path, given: int, damaged: int, length: _Length) -> None:
    tolerance = 0
    if not length.exact:
        tolerance = 2  # a duration is rounded
    is_short = length.frames is not None and given < length.frames - tolerance
    if not damaged and not is_short:
        return
    text = f"{path} gave {given}"
    if length.frames is not None:
        text += f" of {length.frames}"
    text += " frames: it ends early"
    if damaged:
        text += f", and {damaged} of its packets are damaged"
    warnings.warn(text, stacklevel=3)


def _as_rgb(frame: Any) -> Image:
    """Return a decoded frame as an array, rotated as it asks to be shown."""
    image = frame.to_ndarray(format="rgb24")
    return np.ascontiguousarray(np.rot90(image, round(frame.rotation / 90)))


def _stream_rate(stream: Any) -> Fraction:
    return Fraction(stream.average_rate or stream.guessed_rate or DEFAULT_FPS)


def _length(container: Any, stream: Any) -> _Length:
    if stream.frames:
        return _Length(int(stream.frames), True)
    if container.duration:
        frames = round(container.duration * _stream_rate(stream) / 1_000_000)  # it is in microseconds
        return _Length(max(1, frames), False)
    return _Length(None, False)


def _open(path: Path) -> Any:
    av = _av()
    try:
        # titles and comments may be in any encoding
        return av.open(str(path), metadata_errors="replace")
    except av.FFmpegError as error:
        reason = error.strerror or error
        raise ValueError(
            f"{path} does not decode as a video ({reason}): it is not one, "
            f"or its end, where the index may be, is missing"
        ) from error


def _video_stream(path: Path, container: Any) -> Any:
    """Return the first video stream that is not a cover picture."""
    for stream in container.streams.video:
        if "attached_pic" in str(stream.disposition.name or ""):
            continue
        if stream.codec_context is None:  # decoding it would crash the process
            raise ValueError(
                f"{path} has video of an unknown kind, or its beginning is cut off: copy it again"
            )
        return stream
    kinds = sorted({stream.type for stream in container.streams})
    found = ", ".join(kinds) or "nothing"
    raise ValueError(f"{path} has no video stream, only {found}: it is not a video, or is cut off")


def _encode(av: Any, path: Path, frames: Iterator[Image], encoder: str, rate: Fraction) -> None:
    try:
        first = next(frames)
    except StopIteration:
        raise ValueError("there are no frames to write: give at least one") from None
    check_image(first)
    rows, columns = first.shape[:2]
    # faststart puts the index first, so that browsers can show the video before it is loaded
    with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as container:
        stream = container.add_stream(encoder, rate=rate)
        stream.width = columns + columns % 2
        stream.height = rows + rows % 2
        stream.pix_fmt = "yuv420p"  # what every browser can show
        if encoder == "libx264":
            stream.options = {"crf": "18", "preset": "veryfast"}
        else:  # the others have no constant quality: half a bit a pixel, more for a small frame
            stream.bit_rate = max(2_000_000, round(rows * columns * rate / 2))
        for number, image in enumerate(chain([first], frames), 1):
            check_image(image)
            if image.shape != first.shape:
                raise ValueError(
                    f"frame {number} has {image.shape[1]}×{image.shape[0]} pixels and the first "
                    f"{columns}×{rows}: all frames of a video must have one size"
                )
            even = np.pad(image, ((0, rows % 2), (0, columns % 2), (0, 0)), "edge")
            container.mux(stream.encode(av.VideoFrame.from_ndarray(even, format="rgb24")))
        container.mux(stream.encode())  # the frames that the encoder still holds


def _has_encoder(av: Any, name: str) -> bool:
    try:
        av.Codec(name, "w")
    except ValueError:  # UnknownCodecError is one
        return False
    return True


def _check_start(name: str, start: int, count: int | None) -> None:
    if start >= 0 and (count is None or start < count):
        return
    allowed = "0 or more"
    if count is not None:
        allowed = f"0 to {count - 1}"
    raise ValueError(f"the frames of {name} are counted from 0, so start must be {allowed}; got {start}")


def _frame_rate(fps: float | Fraction | None) -> Fraction:
    if fps is None:
        return DEFAULT_FPS
    if not 0 < fps <= 1000:
        raise ValueError(f"fps must be a number of frames a second above 0, such as 30; got {fps}")
    return Fraction(fps).limit_denominator(1001)  # as in 30000/1001; some encoders refuse larger ones


def _av() -> Any:
    try:
        return importlib.import_module("av")
    except ModuleNotFoundError:
        command = to_install("track", "av")
        raise ModuleNotFoundError(f"reading and writing videos needs av: {command}") from None
