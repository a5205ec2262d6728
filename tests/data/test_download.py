"""Downloads against a real HTTP server on the loopback device: mirrors that work, lie, stop and stall."""

import hashlib
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ien.data.download import RemoteFile, download, download_all

from ..helpers.mirror import serving

BODY = random.Random(0).randbytes(600_000)
HALF = len(BODY) // 2
ROOT = Path(__file__).parents[2]
WHOLE, PART = "file.gz", "file.gz.part"


@pytest.fixture
def mirror(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with serving(BODY) as server:
        yield server


def names_in(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_good_file_arrives_whole_and_progress_ends_at_its_size(mirror, tmp_path) -> None:
    seen = []
    path = download(mirror.file("good"), tmp_path / "new" / "folder", lambda *numbers: seen.append(numbers))
    assert path == tmp_path / "new" / "folder" / WHOLE and path.read_bytes() == BODY
    assert names_in(path.parent) == [WHOLE]
    assert seen == sorted(seen) and seen[0] == (0, len(BODY)) and seen[-1] == (len(BODY), len(BODY))
    assert len(seen) > 3


FROM_HALF = f"bytes={HALF}-"


@pytest.mark.parametrize(
    ("there", "content", "mirrors", "asked"),
    [
        (WHOLE, BODY, ["missing"], []),
        (PART, BODY, ["missing"], []),
        (None, b"", ["wrong", "good"], [None, None]),
        (None, b"", ["missing", "good"], [None, None]),
        (PART, BODY[:HALF], ["good"], [FROM_HALF]),
        (PART, BODY[:HALF], ["norange"], [FROM_HALF]),
        (PART, BODY[:HALF], ["refuses"], [FROM_HALF, None]),
        (PART, bytes(HALF), ["good"], [FROM_HALF, None]),
        (PART, bytes(len(BODY)), ["good"], [None]),
        (PART, bytes(len(BODY) + 1), ["refuses"], [f"bytes={len(BODY) + 1}-", None]),
    ],
)
def test_a_file_is_made_whole_with_as_few_requests_as_possible(
    there, content, mirrors, asked, mirror, tmp_path
) -> None:
    if there:
        (tmp_path / there).write_bytes(content)
    assert download(mirror.file(*mirrors), tmp_path).read_bytes() == BODY
    assert [wanted for _, wanted in mirror.asked] == asked and names_in(tmp_path) == [WHOLE]


@pytest.mark.parametrize(
    ("there", "content", "behaviour", "match", "left"),
    [
        (WHOLE, b"short", "good", r"file\.gz is not the published file .* move or delete it", b"short"),
        (WHOLE, bytes(len(BODY)), "good", "is not the published file", bytes(len(BODY))),
        (PART, b"", "wrong", r"sent another file \(wrong sha256\)", None),
        (PART, b"", "chatty", r"sent another file \(wrong sha256\)", None),
        (PART, b"", "truncated", "ended after 300,000 of 600,000 bytes", BODY[:HALF]),
        (PART, BODY[:HALF], "shifted", "answered 206 to a request for bytes 300000-", BODY[:HALF]),
        (PART, BODY[:HALF], "short", "offers 13 bytes where 600000 are needed", BODY[:HALF]),
        (PART, BODY[:HALF], "redirect", "unknown url type: ftp", BODY[:HALF]),
    ],
)
def test_what_fails_leaves_what_is_right(there, content, behaviour, match, left, mirror, tmp_path) -> None:
    (tmp_path / there).write_bytes(content)
    with pytest.raises((ValueError, ConnectionError), match=match):
        download(mirror.file(behaviour), tmp_path)
    assert names_in(tmp_path) == ([there] if left is not None else [])
    assert left is None or (tmp_path / there).read_bytes() == left


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("file:///etc/hostname", "unknown url type: file"),
        ("ftp:///etc/hostname", "unknown url type: ftp"),
        ("http://127.0.0.1:1/file.gz", "unknown url type: http"),
        ("https://127.0.0.1:1/file.gz", "refused"),  # as without a network
    ],
)
def test_only_https_is_followed_and_an_error_names_what_to_put_where(
    url, match, monkeypatch, tmp_path
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    file = RemoteFile("file.gz", 5, "0" * 64, (url,))
    with pytest.raises(ConnectionError, match=rf"{match}.*put into .*: file\.gz \(5 bytes, sha256 0{{64}}\)"):
        download(file, tmp_path)
    assert names_in(tmp_path) == []


def test_one_error_names_all_files_that_no_mirror_has(mirror, tmp_path) -> None:
    files = [mirror.file("good", name="a"), *(mirror.file("missing", "missing", name=n) for n in "bc")]
    with pytest.raises(ConnectionError) as caught:
        download_all(files, tmp_path / "mnist")
    message = str(caught.value)
    sha256 = hashlib.sha256(BODY).hexdigest()
    assert f"put into {tmp_path / 'mnist'}: b (600,000 bytes, sha256 {sha256}), c (600,000 bytes" in message
    assert message.count("404 Not Found") == 2 and " a (" not in message and "\n" not in message


def test_stalled_mirror_is_left_for_the_next_one_which_continues(mirror, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("ien.data.download.TIMEOUT", 0.5)
    assert download(mirror.file("stalls", "good"), tmp_path).read_bytes() == BODY
    (_, first), (_, second) = mirror.asked
    assert first is None and second is not None and second.startswith("bytes=")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs a system with SIGKILL")
def test_killed_half_way_leaves_no_file_and_is_continued(mirror, tmp_path) -> None:
    file = mirror.file("stalls")
    code = f"""if True:
        from ien.data.download import RemoteFile, download
        from tests.helpers.mirror import allowing_http
        with allowing_http():
            download({file!r}, {str(tmp_path)!r}, lambda done, total: print(done, flush=True))"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as client:
        for line in client.stdout:
            if int(line) >= HALF // 2:
                break
        client.send_signal(signal.SIGKILL)
        assert client.wait() == -signal.SIGKILL
    assert names_in(tmp_path) == [PART]
    kept = (tmp_path / PART).stat().st_size
    assert 0 < kept <= HALF
    assert download(mirror.file("good"), tmp_path).read_bytes() == BODY
    assert mirror.asked[-1] == ("good", f"bytes={kept}-") and names_in(tmp_path) == [WHOLE]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full to stand in for a full disk")
def test_full_disk_says_how_much_is_needed(mirror, tmp_path) -> None:
    (tmp_path / PART).symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"cannot write .*file\.gz \(No space left.*600,000 bytes are needed"):
        download(mirror.file("good"), tmp_path)
    assert not (tmp_path / WHOLE).exists()


def test_folder_that_cannot_be_made_is_named(mirror, tmp_path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(OSError, match=r"cannot write .*taken/file\.gz \(File exists\)"):
        download(mirror.file("good"), tmp_path / "taken")
