"""What ``--set`` accepts, what it refuses, and what it then says."""

import pytest

from ien.training import Config, change, differences, flat

CONFIG = Config("rot-mnist/ien-r4", "paper")


@pytest.mark.parametrize(
    ("setting", "name", "value"),
    [
        (" beta = 3e-1 ", "beta", 0.3),
        ("objective.beta=1", "beta", 1.0),
        ("network.width=1/8", "width", 0.125),
        ("width=.5", "width", 0.5),
        ("seed=7", "seed", 7),
        ("train_images=500", "train_images", 500),
        ("train_images=none", "train_images", None),
        ("threads=None", "threads", None),
        *((f"rotate={text}", "rotate", True) for text in ("true", "Yes", "1")),
        *((f"channels_last={text}", "channels_last", False) for text in ("false", "no", "0")),
        ("schedule.shape=exponential", "shape", "exponential"),
        # a section alone means its first choice
        ("schedule=exponential", "shape", "exponential"),
        ("optimizer=sgd", "algorithm", "sgd"),
        ("precision=bf16", "precision", "bf16"),
        ("feature_groups=4-2-1", "feature_groups", "4-2-1"),
        ("group=rot4xflip", "group", "rot4xflip"),
        ("model=e2cnn-cnn6", "model", "e2cnn-cnn6"),
        ("device=cuda:1", "device", "cuda:1"),
        ("weights_of=", "weights_of", ""),
    ],
)
def test_every_type_of_field_can_be_set(setting, name, value) -> None:
    found = flat(change(CONFIG, [setting]))[name]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], {}),
        (["beta=0.3", "width=1/8"], {"beta": 0.3, "width": 0.125}),
        (["epochs=45"], {"epochs": 45, "cycle_epochs": 35}),  # the cycle keeps its share
        (["epochs=1"], {"epochs": 1, "cycle_epochs": 1}),
        (["epochs=45", "cycle_epochs=20"], {"epochs": 45, "cycle_epochs": 20}),
        # what fits only together
        (
            ["augment=no", "beta=0", "samples=7", "group=rot8"],
            {"augment": False, "beta": 0.0, "samples": 7, "group": "rot8"},
        ),
        # without the loss its action does not matter
        (
            ["action=regular", "beta=0", "feature_groups=3"],
            {"action": "regular", "beta": 0.0, "feature_groups": "3"},
        ),
    ],
    ids=str,
)
def test_settings_change_what_they_say_and_nothing_else(settings, expected) -> None:
    found = differences(change(CONFIG, settings), CONFIG)
    assert {name: ours for name, (ours, _) in found.items()} == expected


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        (["bta=1"], r"there is no field 'bta'; did you mean beta"),
        (["learning_rate=1"], r"no field 'learning_rate'; did you mean "),
        (["zzz=1"], r"no field 'zzz'; choose from experiment, preset, seed, "),
        (["data.beta=1"], r"no field 'data.beta'; did you mean objective.beta"),
        (["objective=1"], r"objective is a section: set one of its fields, such as objective.group"),
        (["beta=1", "objective.beta=2"], r"beta is set twice"),
        (["beta"], r"field=value, such as beta=0.3; got 'beta'"),
        (["beta="], r"beta must be a number such as 0.3 or 1/8; got ''"),
        (["beta=nan"], r"beta must be a number .* got 'nan'"),
        (["beta=1e999"], r"beta must be a number .* got '1e999'"),
        (["width=1/0"], r"width must be a number such as 0.3 or 1/8; got '1/0'"),
        (["width=-1/8"], r"width must be 0.00390625 to 16; got -0.125"),
        (["epochs=2.5"], r"epochs must be a whole number; got '2.5'"),
        (["epochs=none"], r"epochs must be a whole number; got 'none'"),
        (["epochs=0"], r"epochs must be 1 to 1e\+06; got 0"),
        (["train_images=few"], r"train_images must be a whole number or none; got 'few'"),
        (["train_images=1"], r"train_images must be 2 to 1e\+12; got 1"),
        (["rotate=maybe"], r"rotate must be true or false; got 'maybe'"),
        (["batch_size=1"], r"batch_size must be 2 to"),
        (["decay=1.5"], r"decay must be 1e-06 to 1; got 1.5"),
        (["threads=0"], r"threads must be 1 to 4096; got 0"),
        (["schedule=cosine"], r"shape must be one-cycle, exponential or steps; got 'cosine'"),
        (["precision=fp16"], r"precision must be float32 or bf16; got 'fp16'"),
        (["feature_groups=4-4"], r"feature groups .*; got '4-4'"),
        (["group=rot3x"], "rot3x"),
        (["group=rot1"], r"group rot1 has one element"),
        (["model=cnn7"], r"there is no model 'cnn7'; did you mean cnn6"),
        (["model=siamfc"], r"there is no model 'siamfc'"),
        (["cycle_epochs=91"], r"cycle_epochs \(91\) cannot exceed epochs \(90\): set both"),
        (["min_lr=0.1"], r"min_lr \(0.1\) cannot exceed max_lr \(0.005\)"),
        (["augment=false"], r"beta 1 needs augment=true"),
        (["target=-0.1"], r"target must be 1e-09 to 2; got -0.1"),
        (["target=nan"], r"target must be a number such as 0.3 or 1/8 or none; got 'nan'"),
        (
            ["target=0.1", "beta=0.1"],
            r"target 0.1 takes the place of beta 0.1: give one of them, with beta=1",
        ),
        (["target=0.1", "group=rot4+0.5*flip"], r"target takes the place of weights: write flip without one"),
        (["target=0.1", "augment=false"], r"beta 1 needs augment=true"),
        (["target=0.1", "beta=0", "augment=false"], r"target 0.1 needs augment=true"),
        (["interpolation=cubic"], r"interpolation must be bilinear or nearest; got 'cubic'"),
        (
            ["interpolation=nearest", "augment=false", "beta=0"],
            r"interpolation=nearest needs augment=true: views are resampled by it",
        ),
        (
            ["corners=true", "beta=0"],
            r"corners=true needs the loss, whose pixels it counts: set beta above 0",
        ),
        (["samples=4"], r"samples must be 1 to 3 for rot4; got 4"),
        (["samples=all"], r"samples must be a whole number; got 'all' \(orbits=true shows images under all"),
        (["subset=1"], r"subset must be 2 to 1e\+12; got 1"),
        (["tie=always"], r"tie must be never, start, free or smooth; got 'always'"),
        (["transform=true", "group=rot4+flip"], r"transform=true needs a single group, such as rot4; got "),
        (["orbits=true", "samples=3"], r"needs augment=true and samples=1; got augment=True and samples=3"),
        (["orbits=true", "augment=no", "beta=0"], r"orbits=true shows every view, .* got augment=False"),
        (["action=regular", "feature_groups=3"], r"action=regular: .*rot4 .* 3; use 4"),
        (["tie=start", "beta=0", "feature_groups=8"], r"tie=start: .*rot4"),
        (["tie=smooth", "beta=0", "feature_groups=3"], r"tie=smooth: .*rot4"),
        (["action=regular", "group=scale0.7"], r"action=regular: only rotations and flips permute"),
        (["tie=free", "group=scale0.7"], r"tie=free needs a single group with a half turn.*; got scale0.7"),
        (["tie=free", "tie_group=rot4+flip"], r"tie=free needs a single group .*; got rot4\+flip"),
        (["tie_group=rot4"], r"tie_group=rot4 needs tie=smooth, free or start"),
        (["tie=free", "tie_group=rot4xflip", "group=scale0.7"], r"tie=free: .*rot4xflip"),
        (
            ["tie=smooth", "group=rot4+flip"],
            r"tie=smooth needs a single group .* such as rot4; got rot4\+flip",
        ),
        (["tie=start", "model=e2cnn-cnn6"], r"tie=start needs a plain network, cnn6, .*; got e2cnn-cnn6"),
        (["model=e2cnn-cnn6", "precision=bf16"], r"e2cnn-cnn6 does not support precision=bf16"),
        (["model=e2cnn-cnn6", "feature_groups=4-2-1"], r"e2cnn-cnn6 needs feature groups of one size"),
        (["model=e2cnn-cnn6", "feature_groups=8"], r"under rot4 needs feature groups of 4, .*; got 8"),
        (["group=rot4+flip", "average=true"], r"average=true needs a single group, such as rot4"),
        (["measured=rot8", "average=true"], r"measures under it; got group rot4, measured rot8"),
        (["group=rot4+rot4"], r"groups must be distinct: rot4 is in 'rot4\+rot4' twice"),
        (["group=rot4+0*flip"], r"the weight of flip in 'rot4\+0\*flip' must be positive; got 0"),
        (["group=rot4+much*flip"], r"cannot read 'much\*flip' in 'rot4\+much\*flip'"),
        (["group=rot4+rot1"], r"one element, the identity"),
        (["group=rot4+flip", "samples=2"], r"samples must be 1 to 1 for rot4\+flip"),
        (["measured=rot4+turn"], r"cannot read group 'turn'"),
        (["model=e2cnn-cnn6", "group=rot4+flip"], r"under rot4\+flip needs feature groups of 4"),
        (["model=cnn3"], r"image_size must be 28 or 56 for cnn3; got 64"),
        (["schedule=steps"], r"steps_after must list rising epochs, such as 20,40; got ''"),
        (["schedule=steps", "steps_after=5,5"], r"steps_after must list rising epochs"),
        (["schedule=steps", "steps_after=5,3"], r"steps_after must list rising epochs"),
        (["group=rot4444444"], r"a group can have at most 1024 elements; got rot4444444"),
        (["group=rot100xrot101"], r"at most 1024 elements; rot100 times rot101 has 100 × 101"),
        (["measured=" + "rot4x" * 300], r"text such as rot4xflip; got 1500 characters"),
        ([f"beta={'9' * 400}/1"], r"beta must be a number such as 0.3 or 1/8; got '999"),
        ([f"epochs={10**400}"], r"epochs must be 1 to 1e\+06; got 1000.*\.\.\.0000"),
        (["feature_groups=99999999"], r"sizes of up to 256, such as 4 or 4-2-1; got 99999999"),
        (["device=meta"], r"device meta computes shapes without numbers, .*: use cpu or auto"),
        (["preset=small"], r"preset cannot be set: the command chooses it"),
        (["machine.processes=2"], r"machine.processes cannot be set"),
    ],
    ids=str,
)
def test_bad_settings_say_what_was_needed(settings, match) -> None:
    with pytest.raises(ValueError, match=match) as caught:
        change(CONFIG, settings)
    assert "\n" not in str(caught.value)
