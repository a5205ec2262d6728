"""What is shipped: wheel and sdist hold the digits, and run the demo where no checkout is."""

import importlib.util
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = (
    "ien/data/digits.npz",
    "ien/data/digits.txt",
    "ien/report/page/templates/explorer.js",
    "ien/py.typed",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the wheel and the sdist, built by the backend that pyproject.toml names."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("packages are built with hatchling: pip install hatchling")
    folder = tmp_path_factory.mktemp("built")
    for target in ("wheel", "sdist"):
        command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.mark.slow
def test_wheel_and_sdist_hold_the_digits_with_their_attribution(built) -> None:
    (wheel,) = built.glob("ien-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    assert set(PARTS) <= names and wheel.stat().st_size < 2_000_000
    assert any(name.endswith("licenses/src/ien/data/digits.txt") for name in names)
    assert "Requires-Dist: torch>=2.6\n" in metadata and "mlxtend" not in metadata
    (sdist,) = built.glob("ien-*.tar.gz")
    with tarfile.open(sdist) as archive:
        inside = {name.split("/", 1)[-1] for name in archive.getnames()}
    assert {f"src/{part}" for part in PARTS} <= inside
    assert {"pyproject.toml", "constraints.txt", "Makefile", "LICENSE", "README.md"} <= inside


def install(package: Path, site: Path) -> set[Path]:
    """Install a package into an empty folder, without its dependencies and the network; its files."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(site), str(package)], check=True, capture_output=True)
    return {path.relative_to(site) for path in site.rglob("*") if path.suffix not in (".pyc", "")}


@pytest.mark.slow
def test_the_sdist_installs_the_same_files_as_the_wheel(built, tmp_path) -> None:
    (wheel,), (sdist,) = built.glob("ien-*.whl"), built.glob("ien-*.tar.gz")
    files = install(wheel, tmp_path / "wheel")
    assert Path("ien/data/digits.npz") in files and files == install(sdist, tmp_path / "sdist")


@pytest.mark.slow
def test_the_wheel_in_an_empty_folder_runs_the_demo(built, tmp_path) -> None:
    """Dependencies come from this environment."""
    (wheel,) = built.glob("ien-*.whl")
    site = tmp_path / "site"
    install(wheel, site)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
    where = [sys.executable, "-c", "import ien; print(ien.__file__)"]
    found = subprocess.run(where, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert Path(found.stdout.strip()).is_relative_to(site)
    demo = [sys.executable, "-m", "ien", "demo", "--epochs", "1", "--set", "train_images=256"]
    demo += ["--set", "test_images=50", "--set", "width=1/32"]
    done = subprocess.run(demo, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "equivariant CNN" in done.stdout
    assert (tmp_path / "runs" / "demo" / "report.html").is_file()
