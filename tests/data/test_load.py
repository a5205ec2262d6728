"""Loading by name: where data are looked for, what the seed decides, and what is said of mistakes."""

import inspect

import numpy as np
import pytest
import torch

from ien.data import CLIP_SETS, DATASETS, load, to_float
from ien.tracking.data.sets import SETS

from ..helpers.tiny import cache_files, differing, make_stl10, make_tiny_imagenet


def test_the_folder_is_the_argument_then_ien_data_then_data(tmp_path, monkeypatch) -> None:
    make_stl10(tmp_path / "data")
    expected = load("stl10", tmp_path / "data")
    monkeypatch.setenv("IEN_DATA", str(tmp_path / "data"))
    assert differing(load("stl10"), expected) == []
    monkeypatch.delenv("IEN_DATA")
    monkeypatch.chdir(tmp_path)
    assert differing(load("stl10"), expected) == []


@pytest.mark.parametrize("name", sorted(DATASETS.keys() - {"stl10"}))
def test_the_seed_decides_and_the_global_generator_stays(name, full_folder, monkeypatch) -> None:
    settings = {"classes": 4} if "classes" in DATASETS[name].settings else {}
    state = torch.get_rng_state()
    first, other = (load(name, full_folder, seed, **settings) for seed in (1, 2))
    assert differing(first, other) == ["train_x", "train_y", "test_x", "test_y"] and len(cache_files()) == 2
    monkeypatch.setenv("IEN_CACHE", str(full_folder / "another cache"))
    assert differing(first, load(name, full_folder, 1, **settings)) == []
    assert torch.equal(torch.get_rng_state(), state)


def test_to_float_divides_bytes_and_leaves_floats() -> None:
    x = torch.arange(256, dtype=torch.uint8)
    assert to_float(x).tolist() == (np.arange(256, dtype=np.float32) / np.float32(255)).tolist()
    y = torch.rand(3)
    assert to_float(y) is y
    with pytest.raises(ValueError, match=r"uint8 or floating point; got torch\.int64"):
        to_float(torch.arange(3))


@pytest.mark.parametrize(
    ("name", "folder", "settings", "match"),
    [
        ("rotmnist", "", {}, "no data set 'rotmnist'; did you mean rot-mnist"),
        ("got10", "", {}, "no data set 'got10'; did you mean got10k"),
        ("got10k", "", {}, "got10k holds clips, not images: .*load_clips"),
        ("scale-mnist", "", {"classes": 4}, "scale-mnist takes no setting 'classes'; it takes none"),
        ("rot-mnist", "", {"max_angel": 4}, "rot-mnist takes no setting 'max_angel'; did you mean max_angle"),
        ("rot-mnist", "", {"max_angle": 181}, r"max_angle must be 0 \(upright\) to 180 .* got 181"),
        ("rot-mnist", "embedded", {"max_angle": -1}, r"max_angle must be 0 \(upright\) to 180 .* got -1"),
        ("stl10", "", {"mask": True}, "stl10 takes no setting 'mask'; did you mean image_size"),
        ("rot-tim", "", {"clases": 4}, "rot-tim takes no setting 'clases'; did you mean classes"),
        ("rot-tim", "", {}, "100 classes were asked for, but .*-200 holds 4: use --set classes=4, or add"),
        ("rot-tim", "", {"classes": 1}, "1 classes were asked for, but .* use --set classes=4$"),
        ("rot-tim", "", {"classes": 4, "image_size": 65}, "must be 8 to 64.* --set image_size=64"),
        ("r2-tim", "", {"classes": 4, "image_size": 2}, "must be 8 to 64.* --set image_size=8"),
        ("stl10", "", {"image_size": 97}, "must be 8 to 96.* got 97: use --set image_size=96"),
        ("r2-tim", "embedded", {}, "r2-tim cannot be made from .*`ien data get tiny-imagenet`"),
        ("stl10", "embedded", {}, "stl10 cannot be made from .*`ien data get stl10`"),
        ("eurosat", "embedded", {}, "eurosat cannot be made from .* give a data folder with the pictures of"),
        ("eurosat", "none", {}, "no eurosat: there is no folder none/eurosat: put its pictures into none/eu"),
        ("neu-steel", "", {"image_size": 7}, "no neu-steel: there is no folder .*neu-steel: put"),
        ("tiny-imagenet", "", {"classes": 5}, "5 classes were asked for, but .* use --set classes=4, or"),
        ("stl10", "none", {}, "no STL-10: .*`ien data get stl10 --data none`, or put"),
        ("r2-tim", "none", {}, "no Tiny ImageNet: .*`ien data get tiny-imagenet --data none`, or put"),
    ],
)
def test_what_cannot_be_loaded_is_told_in_one_line(name, folder, settings, match, tmp_path) -> None:
    make_tiny_imagenet(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=match) as caught:
        load(name, folder or tmp_path, **settings)
    assert "\n" not in str(caught.value) and cache_files() == []


@pytest.mark.parametrize("name", DATASETS)
def test_settings_are_those_that_the_function_takes(name) -> None:
    first, second, *others = inspect.signature(DATASETS[name].from_folder).parameters
    assert (first, second) == ("folder", "seed")
    assert DATASETS[name].settings == tuple(setting for setting in others if setting != "reflect")


def test_the_sets_of_clips_are_those_of_tracking() -> None:
    assert CLIP_SETS == SETS
