"""Video: frames come back as they were written; broken files give what they have or say what is wrong."""

import os
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ien.tracking.data.clip import Clip
from ien.tracking.data.rot_otb import write
from ien.tracking.data.synthetic import synthetic
from ien.tracking.video import footage, write_video
from tests.helpers.blob import frame

pytestmark = pytest.mark.usefixtures("one_thread")
needs_av = pytest.mark.skipif(
    __import__("importlib.util").util.find_spec("av") is None, reason="av is not installed"
)

FRAMES = 12


@pytest.fixture(scope="module")
def clip() -> Clip:
    return synthetic(seed=4, frames=FRAMES, size=(96, 128))


@pytest.fixture(scope="module")
def video(clip, tmp_path_factory) -> Path:
    pytest.importorskip("av")
    path = tmp_path_factory.mktemp("video") / "clip.mp4"
    codec = write_video(path, footage(clip), Fraction(30000, 1001))
    assert codec in ("H.264 (libx264)", "H.264 (libopenh264)", "MPEG-4 part 2 (mpeg4)")
    return path


@pytest.fixture
def folder(clip, tmp_path) -> Path:
    """The clip as images in the layout of OTB."""
    pytest.importorskip("PIL")
    return write(clip, tmp_path / "clips", suffix=".png")


def encoded(path: Path, frames: list[np.ndarray], codec: str = "mpeg4", **options: Any) -> Path:
    """A video of any container, without :func:`write_video`."""
    import av

    with av.open(str(path), "w", **options) as container:
        stream = container.add_stream(codec, rate=25)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for image in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
    return path


def mean_difference(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found.astype(int) - expected).mean())


@needs_av
def test_frames_come_back_in_order_with_their_rate(clip, video) -> None:
    seen = footage(video)
    assert (seen.name, seen.count, seen.fps) == ("clip", FRAMES, Fraction(30000, 1001))
    images = list(seen)
    assert len(images) == FRAMES and len(list(seen)) == FRAMES  # and a second time
    for i, image in enumerate(images):
        assert image.shape == (96, 128, 3) and image.dtype == np.uint8
        differences = [mean_difference(image, clip.frame(j)) for j in range(FRAMES)]
        assert differences[i] < 10 and differences[i] == min(differences)
    assert (seen.first() == images[0]).all()


@needs_av
def test_odd_sizes_get_a_row_and_a_column_and_colours_are_not_swapped(tmp_path) -> None:
    image = np.full((31, 47, 3), (220, 30, 30), np.uint8)
    image[:, 24:] = (30, 30, 220)
    write_video(tmp_path / "two.mp4", [image] * 3, 10)
    found = list(footage(tmp_path / "two.mp4"))
    assert len(found) == 3 and found[0].shape == (32, 48, 3)
    for columns in (slice(4, 20), slice(28, 44)):
        assert mean_difference(found[2][8:24, columns], image[8:24, columns]) < 12


@needs_av
@pytest.mark.parametrize("container", ["mp4", "mkv", "avi"])
def test_a_file_that_ends_early_gives_its_frames_and_a_warning(tmp_path, video, clip, container) -> None:
    path = tmp_path / f"a.{container}"
    if container == "mp4":
        path.write_bytes(video.read_bytes())
    else:
        encoded(path, list(footage(clip)) * 2)
    whole = list(footage(path))
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 4])
    with pytest.warns(UserWarning, match=rf"gave \d+ of {len(whole)} frames: it ends early"):
        found = list(footage(path))
    assert 0 < len(found) < len(whole) and len(whole) in (FRAMES, 2 * FRAMES)
    assert all(mean_difference(a, b) < 1 for a, b in zip(found[:-1], whole, strict=False))


@needs_av
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda whole: b"", r"x\.mp4 does not decode as a video"),
        (lambda whole: b"no video at all\n" * 40, r"x\.mp4 does not decode as a video"),
        (lambda whole: bytes(5000), r"x\.mp4 does not decode as a video"),
        (lambda whole: whole[:200], r"does not decode|no video stream.*cut off"),
        (lambda whole: whole[: whole.index(b"mdat") + 40], r"no frame of .* decodes|unknown kind"),
    ],
)
def test_a_file_without_a_whole_frame_is_an_error(tmp_path, video, damage, message) -> None:
    path = tmp_path / "x.mp4"
    path.write_bytes(damage(video.read_bytes()))
    with pytest.raises(ValueError, match=message):
        list(footage(path))


@needs_av
def test_a_title_in_another_encoding_does_no_harm(tmp_path, clip) -> None:
    import av

    path = tmp_path / "x.mp4"
    with av.open(str(path), "w") as container:
        container.metadata["title"] = "TITLE OF IT"
        stream = container.add_stream("mpeg4", rate=25)
        stream.height, stream.width = clip.frame(0).shape[:2]
        stream.pix_fmt = "yuv420p"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(clip.frame(0), format="rgb24")))
        container.mux(stream.encode())
    whole = path.read_bytes()
    assert whole.count(b"TITLE OF IT") == 1
    path.write_bytes(whole.replace(b"TITLE OF IT", b"T\xcfTLE \xff\xfe IT"))
    with pytest.raises(UnicodeDecodeError):  # what av does by itself
        av.open(str(path))
    assert len(list(footage(path))) == 1


@needs_av
def test_sound_alone_is_no_video(tmp_path) -> None:
    import av

    path = tmp_path / "sound.wav"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        sound.rate = 8000
        container.mux(stream.encode(sound))
        container.mux(stream.encode())
    with pytest.raises(ValueError, match="no video stream, only audio"):
        footage(path)


def matrix(right: tuple[int, int], down: tuple[int, int]) -> bytes:
    """Where a step to the right and one down in the file point on the screen, as headers have it."""
    numbers = (right[0] << 16, right[1] << 16, 0, down[0] << 16, down[1] << 16, 0, 0, 0, 1 << 30)
    return b"".join(n.to_bytes(4, "big", signed=True) for n in numbers)


@needs_av
@pytest.mark.parametrize(("right", "down", "quarters"), [((0, 1), (-1, 0), -1), ((-1, 0), (0, -1), 2)])
def test_a_video_that_asks_to_be_shown_rotated_is_rotated(tmp_path, video, right, down, quarters) -> None:
    header, marker, rest = video.read_bytes().partition(b"tkhd")
    turned = rest.replace(matrix((1, 0), (0, 1)), matrix(right, down), 1)
    (tmp_path / "turned.mp4").write_bytes(header + marker + turned)
    for found, straight in zip(footage(tmp_path / "turned.mp4"), footage(video), strict=True):
        assert (found == np.rot90(straight, quarters)).all()


def test_clips_and_folders_of_images_are_footage_too(tmp_path, clip, folder) -> None:
    for source, rate in ((clip, None), (folder, None), (folder / "img", 12.5)):
        seen = footage(source, rate)
        assert seen.count == FRAMES and seen.fps == Fraction(rate or 30)
        assert all((image == clip.frame(i)).all() for i, image in enumerate(seen))
    assert footage(folder).name == clip.name
    with pytest.raises(FileNotFoundError, match="no images"):
        footage(tmp_path)
    with pytest.raises(FileNotFoundError, match="no video or folder"):
        footage(tmp_path / "missing.mp4")
    with pytest.raises(ValueError, match="fps must be"):
        footage(clip, -1)


@needs_av
def test_footage_can_begin_later_and_not_after_its_end(tmp_path, clip, folder, video) -> None:
    for source in (clip, folder, video):
        whole, later = list(footage(source)), footage(source, start=5)
        assert later.count == FRAMES - 5 and (later.first() == whole[5]).all()
        assert all((a == b).all() for a, b in zip(later, whole[5:], strict=True))
        for start in (-1, FRAMES):
            with pytest.raises(ValueError, match=rf"start must be 0 to {FRAMES - 1}; got {start}"):
                footage(source, start=start)
    path = encoded(tmp_path / "length unknown.mkv", [clip.frame(i) for i in range(4)])
    assert len(list(footage(path, start=3))) == 1
    with pytest.raises(ValueError, match="start must be 0 to 3; got 9"):
        list(footage(path, start=9))
    with pytest.raises(ValueError, match="start must be 0 or more; got -1"):
        footage(path, start=-1)


@needs_av
def test_a_video_is_written_whole_or_not_at_all(tmp_path) -> None:
    path = tmp_path / "out.mp4"
    path.write_bytes(b"earlier")

    def broken() -> Any:
        yield frame(size=(64, 64))
        raise KeyError("the tracker fails")

    with pytest.raises(KeyError):
        write_video(path, broken())
    with pytest.raises(ValueError, match="at least one"):
        write_video(path, [])
    with pytest.raises(ValueError, match="frame 2 has 66×64 pixels"):
        write_video(path, [frame(size=(64, 64)), frame(size=(64, 66))])
    assert path.read_bytes() == b"earlier" and os.listdir(tmp_path) == ["out.mp4"]
    with pytest.raises(ValueError, match=r"name it out\.mp4"):
        write_video(tmp_path / "out.avi", [frame()])


@needs_av
def test_without_an_h264_encoder_another_codec_is_used_and_named(tmp_path, monkeypatch, clip) -> None:
    monkeypatch.setattr("ien.tracking.video.ENCODERS", {"no-such": "H.264", "mpeg4": "MPEG-4 part 2"})
    assert write_video(tmp_path / "old.mp4", footage(clip), 12.5) == "MPEG-4 part 2 (mpeg4)"
    seen = footage(tmp_path / "old.mp4")
    assert seen.fps == Fraction(25, 2)
    assert all(mean_difference(image, clip.frame(i)) < 12 for i, image in enumerate(seen))


def test_without_av_the_extra_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    (tmp_path / "a.mp4").write_bytes(b"")
    for use in (lambda: footage(tmp_path / "a.mp4"), lambda: write_video(tmp_path / "b.mp4", [frame()])):
        with pytest.raises(ModuleNotFoundError, match=r"needs av: pip install"):
            use()
