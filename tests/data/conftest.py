"""Every test of data has a data folder and a cache of its own."""

from unittest.mock import Mock

import pytest

from ien.data.class_folders import NAMED
from ien.data.scale_mnist import Sizes

from ..helpers.tiny import COUNTS, make_class_folders, make_mnist, make_stl10, make_tiny_imagenet


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("IEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("IEN_DATA", raising=False)


@pytest.fixture
def spied(monkeypatch):
    """Keeps all calls of a function, which does its work, in a list."""

    def spy(owner, name):
        function = Mock(wraps=getattr(owner, name))
        monkeypatch.setattr(owner, name, function)
        return function.call_args_list

    return spy


@pytest.fixture
def mnist_folder(tmp_path, monkeypatch):
    """A data folder with an MNIST of 120 tagged images, of which 40 (+ 10) train and the others test."""
    monkeypatch.setattr("ien.data.mnist.DIGITS", COUNTS)
    monkeypatch.setattr("ien.data.rot_mnist.TRAIN", 40)
    monkeypatch.setattr("ien.data.rot_mnist.TEST", 70)
    monkeypatch.setattr("ien.data.scale_mnist.SIZES", Sizes(40, 10, 60))
    make_mnist(tmp_path / "data", COUNTS)
    return tmp_path / "data"


@pytest.fixture
def full_folder(mnist_folder):
    """A data folder with the sources of every data set, few images each."""
    pytest.importorskip("PIL", reason="images are written with pillow: pip install 'ien[plots]'")
    make_tiny_imagenet(mnist_folder)
    make_stl10(mnist_folder)
    for name in NAMED:
        make_class_folders(mnist_folder / name)
    return mnist_folder
