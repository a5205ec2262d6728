"""Synthetic clips: from a seed to a textured object that moves, turns and scales over a textured ground."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace

import numpy as np

from .clips import Array, Clip
from .rot_otb import turn, upright_sides

__all__ = ["synthetic"]

WAVES = 12
"""Plane waves of which each of the two fields of a texture is the sum."""
LEAST = 32
"""Rows and columns that a frame has at least."""


def synthetic(
    seed: int,
    frames: int = 60,
    size: tuple[int, int] = (240, 320),
    turning: bool = True,
    scaling: bool = True,
    distractors: int = 1,
    alike: bool = False,
    speed: float = 1.0,
) -> Clip:
    """A clip without data: exact boxes and angles, and frames that are drawn when they are asked for.

    The object, a rectangle or an ellipse, moves along a smooth path and stays in the frame, of ``size`` rows
    and columns. It turns by 2 to 6 degrees a frame, one way, with a slow wobble, and grows and shrinks by up
    to half. Its box is the upright box around it. ``distractors`` pass below the object, of other textures
    or, if ``alike``, of other patterns in its colours; the ground drifts. ``speed`` is a factor on how fast
    all objects move. Frame i depends on ``seed``, i and the settings, and not on ``frames``.

    >>> clip = synthetic(seed=0, frames=3)
    >>> clip, clip.frame(2).shape, float(clip.angles[0])
    (Clip(synthetic-0: 3 frames, angles), (240, 320, 3), 0.0)
    """
    if operator.index(seed) < 0 or operator.index(frames) < 1:
        raise ValueError(f"a clip needs a seed of 0 or more and 1 frame or more; got {seed} and {frames}")
    if min(map(operator.index, size)) < LEAST:
        raise ValueError(f"a clip needs {LEAST} rows and columns or more; got {size[0]}×{size[1]}")
    if operator.index(distractors) < 0 or not 0 < speed <= 4:
        raise ValueError(
            f"a clip needs 0 distractors or more and a speed above 0, up to 4; got {distractors} and {speed}"
        )
    # a stream each: what one of them draws does not change the others
    ground, first, above, *more = (
        np.random.Generator(np.random.PCG64([seed, part])) for part in range(3 + distractors)
    )
    drift = 0.5 * (ground.random(2) * 2 - 1)
    backdrop = _texture(ground, 0.08 * min(size), 0.3 * min(size), 30)
    target, *others = (
        _object(draw, frames, size, turning, scaling, speed)
        for draw in (above, first, *more)[: 1 + distractors]
    )
    if alike:
        base, colours = target.texture.base, target.texture.colours
        others = [replace(o, texture=replace(o.texture, base=base, colours=colours)) for o in others]
    boxes = np.concatenate([target.centres - (target.upright - 1) / 2, target.upright], 1)
    scene = _Scene((size[0], size[1]), frames, backdrop, drift, (*others, target))
    return Clip(f"synthetic-{seed}", scene, boxes, angles=target.degrees)


@dataclass(frozen=True, eq=False)
class _Texture:
    """Two fields, each a sum of plane waves, and the two colours that they add to a third."""

    waves: Array
    """(2, WAVES, 2) radians a pixel along x and y."""
    phases: Array
    """(2, WAVES)."""
    base: Array
    """(3,)."""
    colours: Array
    """(2, 3)."""


@dataclass(frozen=True, eq=False)
class _Object:
    """A rectangle or an ellipse with a texture of its own, and its pose in every frame."""

    texture: _Texture
    round: bool
    centres: Array
    """(T, 2)."""
    degrees: Array
    """(T,)."""
    scales: Array
    """(T,)."""
    sides: Array
    """(2,) at scale 1, not turned."""

    @property
    def upright(self) -> Array:
        """Width and height (T, 2) of the upright box."""
        return upright_sides(
            self.sides * self.scales[:, None], self.degrees, "ellipse" if self.round else "hull"
        )


@dataclass(frozen=True, eq=False)
class _Scene:
    """The frames: the ground, and over it the objects, the last on top."""

    size: tuple[int, int]
    count: int
    ground: _Texture
    drift: Array
    objects: tuple[_Object, ...]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Array:
        rows, columns = self.size
        x, y = np.arange(columns, dtype=np.float32), np.arange(rows, dtype=np.float32)
        image = _paint(self.ground, x, y, self.drift * index)
        for thing in self.objects:
            _draw(thing, index, image)
        return np.clip(image + 0.5, 0, 255).astype(np.uint8)


def _texture(draw: np.random.Generator, shortest: float, longest: float, contrast: float) -> _Texture:
    lengths = shortest * (longest / shortest) ** draw.random((2, WAVES))
    ways = 2 * np.pi * draw.random((2, WAVES))
    waves = (2 * np.pi / lengths)[..., None] * np.stack([np.cos(ways), np.sin(ways)], -1)
    colours = draw.random((2, 3)) * 2 - 1
    colours *= contrast * np.array([[1.0], [0.6]]) / np.abs(colours).max(1, keepdims=True)
    return _Texture(waves, 2 * np.pi * draw.random((2, WAVES)), 95 + 65 * draw.random(3), colours)


def _object(
    draw: np.random.Generator, frames: int, size: tuple[int, int], turning: bool, scaling: bool, speed: float
) -> _Object:
    """Sides and paths are such that the object stays in the frame in whatever pose it is."""
    time = np.arange(frames)
    least = min(size)
    side, aspect = least * (0.17 + 0.05 * draw.random()), 1.7 ** (2 * draw.random() - 1)
    sides = side * np.array([aspect, 1 / aspect]) ** 0.5
    texture = _texture(draw, 0.18 * side, 0.6 * side, 70)
    round_, way = draw.random() < 0.5, 1 if draw.random() < 0.5 else -1
    rate, wobble, growth = (
        way * (2 + 4 * draw.random()),
        _swing(draw, time, 40, 80),
        _swing(draw, time, 60, 120),
    )
    degrees = (rate * time + 12 * (wobble - wobble[0])) * turning
    scales = np.exp(0.2 * (growth - growth[0]) * scaling)
    reach = np.hypot(*sides) / 2 * np.exp(0.2 * (1 - growth[0]) * scaling)
    path = np.stack(
        [
            0.7 * _swing(draw, speed * time, 80, 140) + 0.3 * _swing(draw, speed * time, 40, 80)
            for _ in range(2)
        ],
        1,
    )
    middle = (np.array(size[::-1]) - 1) / 2
    return _Object(texture, round_, middle + (middle + 0.5 - reach) * path, degrees, scales, sides)


def _swing(draw: np.random.Generator, time: Array, shortest: float, longest: float) -> Array:
    """(T,) between -1 and 1, a sine of a drawn period and phase."""
    period, phase = shortest + (longest - shortest) * draw.random(), draw.random()
    return np.sin(2 * np.pi * (time / period + phase))


def _paint(
    texture: _Texture,
    x: Array,
    y: Array,
    origin: Array,
    degrees: float = 0.0,
    scale: float = 1.0,
) -> Array:
    """The texture, turned and scaled about ``origin``, at columns ``x`` and rows ``y``: (rows, columns, 3).

    A plane wave is a sum of two products of a function of x and one of y, so a field is one product of
    matrices, exact in every pose: nothing is resampled.
    """
    cos, sin = turn(degrees)
    waves = texture.waves @ np.array([[cos, -sin], [sin, cos]]) / scale  # (2, WAVES, 2)
    phases = texture.phases - waves @ origin
    across = (waves[..., :1] * x + phases[..., None]).astype(np.float32)  # (2, WAVES, columns)
    down = (waves[..., 1:] * y).astype(np.float32)  # (2, WAVES, rows)
    left = np.concatenate([np.cos(down), np.sin(down)], 1).transpose(0, 2, 1)
    fields = left @ np.concatenate([np.cos(across), -np.sin(across)], 1)  # (2, rows, columns)
    np.tanh(fields * (2 * (2 / WAVES) ** 0.5), out=fields)
    colours = fields.reshape(2, -1).T @ texture.colours.astype(np.float32)
    return (colours + texture.base.astype(np.float32)).reshape(len(y), len(x), 3)


def _draw(thing: _Object, index: int, image: Array) -> None:
    """The object over ``image``, in place; a pixel at its border is mixed."""
    x0, y0 = thing.centres[index].tolist()  # plain floats keep the arrays in float32
    degrees, scale = float(thing.degrees[index]), float(thing.scales[index])
    reach = thing.upright[index] / 2 + 1
    (left, top), (right, bottom) = (
        np.clip(np.round(corner).astype(int), 0, image.shape[1::-1])
        for corner in (thing.centres[index] - reach, thing.centres[index] + reach + 1)
    )
    x, y = np.arange(left, right, dtype=np.float32), np.arange(top, bottom, dtype=np.float32)
    cos, sin = map(float, turn(degrees))
    u = cos * (x - x0) - sin * (y - y0)[:, None]
    v = sin * (x - x0) + cos * (y - y0)[:, None]
    width, height = (thing.sides * scale / 2).tolist()
    if thing.round:
        cover = np.clip((1 - np.hypot(u / width, v / height)) * min(width, height) + 0.5, 0, 1)
    else:
        cover = np.clip(width + 0.5 - np.abs(u), 0, 1) * np.clip(height + 0.5 - np.abs(v), 0, 1)
    part = image[top:bottom, left:right]
    part += cover[..., None] * (_paint(thing.texture, x, y, np.array([x0, y0]), degrees, scale) - part)
