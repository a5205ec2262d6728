"""Synthetic clips: a textured object that moves, rotates and scales, drawn from a seed.

A texture is a sum of plane waves, so it can be drawn exactly in every pose: nothing is resampled.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace

import numpy as np

from .boxes import boxes_at, cos_sin, upright_sides
from .clip import Array, Clip

__all__ = ["synthetic"]

NUM_WAVES = 12
"""Plane waves in each of the two fields of a texture."""
MIN_FRAME_SIDE = 32
"""Rows and columns that a frame must have."""


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
    """Generate a clip with exact boxes and angles; frames are drawn when they are asked for.

    The object, a rectangle or an ellipse, moves along a smooth path within the frame. It rotates by
    2 to 6 degrees a frame, one way, with a slow wobble, and grows and shrinks by up to half. Its
    box is the upright box around it. Frame i depends on ``seed``, i and the settings, but not on
    ``frames``.

    Its pictures are not natural images: use it to test, to try things out and for demonstrations.

    Args:
        seed: Clips of other seeds are different ones.
        frames: Number of frames.
        size: Rows and columns of a frame.
        turning: Whether the objects rotate.
        scaling: Whether they grow and shrink.
        distractors: Number of other objects, which pass below the target.
        alike: Whether they have its colours, in another pattern; otherwise all of their texture
            differs.
        speed: Factor on how fast all objects move.

    >>> clip = synthetic(seed=0, frames=3)
    >>> clip, clip.frame(2).shape, float(clip.angles[0])
    (Clip(synthetic-0: 3 frames, angles), (240, 320, 3), 0.0)
    """
    if operator.index(seed) < 0 or operator.index(frames) < 1:
        raise ValueError(f"a clip needs a seed of 0 or more and 1 frame or more; got {seed} and {frames}")
    if min(map(operator.index, size)) < MIN_FRAME_SIDE:
        raise ValueError(f"a clip needs {MIN_FRAME_SIDE} rows and columns or more; got {size[0]}×{size[1]}")
    if operator.index(distractors) < 0 or not 0 < speed <= 4:
        raise ValueError(
            f"a clip needs 0 distractors or more and a speed above 0, up to 4; got {distractors} and {speed}"
        )

    # a stream for each part, so that what one part draws does not change the others
    streams = []
    for part in range(3 + distractors):
        streams.append(np.random.Generator(np.random.PCG64([seed, part])))
    ground, first_distractor, above, *more = streams
    drift = 0.5 * (ground.random(2) * 2 - 1)
    shorter = min(size)
    backdrop = _texture(ground, 0.08 * shorter, 0.3 * shorter, 30)

    target = _object(above, frames, size, turning, scaling, speed)
    others = []
    for stream in (first_distractor, *more)[:distractors]:
        other = _object(stream, frames, size, turning, scaling, speed)
        if alike:
            texture = replace(other.texture, base=target.texture.base, colours=target.texture.colours)
            other = replace(other, texture=texture)
        others.append(other)

    boxes = boxes_at(target.centres, target.upright)
    scene = _Scene((size[0], size[1]), frames, backdrop, drift, (*others, target))
    return Clip(f"synthetic-{seed}", scene, boxes, angles=target.degrees)


@dataclass(frozen=True, eq=False)
class _Texture:
    """Two fields, each a sum of plane waves; each adds its colour to a base colour."""

    waves: Array
    """(2, NUM_WAVES, 2) radians per pixel along x and y."""
    phases: Array
    """(2, NUM_WAVES)."""
    base: Array
    """(3,)."""
    colours: Array
    """(2, 3)."""


@dataclass(frozen=True, eq=False)
class _Object:
    """A rectangle or an ellipse with its texture, and its pose in every frame."""

    texture: _Texture
    round: bool
    centres: Array
    """(T, 2)."""
    degrees: Array
    """(T,)."""
    scales: Array
    """(T,)."""
    sides: Array
    """(2,) at scale 1, before it rotates."""

    @property
    def upright(self) -> Array:
        """Width and height (T, 2) of the upright box."""
        sides = self.sides * self.scales[:, None]
        return upright_sides(sides, self.degrees, ellipse=self.round)


@dataclass(frozen=True, eq=False)
class _Scene:
    """The frames: the ground, and the objects on it, the last on top."""

    size: tuple[int, int]
    count: int
    ground: _Texture
    drift: Array
    objects: tuple[_Object, ...]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Array:
        rows, columns = self.size
        x = np.arange(columns, dtype=np.float32)
        y = np.arange(rows, dtype=np.float32)
        image = _paint(self.ground, x, y, self.drift * index)
        for thing in self.objects:
            _draw(thing, index, image)
        return np.clip(image + 0.5, 0, 255).astype(np.uint8)


def _texture(draw: np.random.Generator, shortest: float, longest: float, contrast: float) -> _Texture:
    """Draw a texture whose waves are ``shortest`` to ``longest`` pixels long."""
    lengths = shortest * (longest / shortest) ** draw.random((2, NUM_WAVES))
    directions = 2 * np.pi * draw.random((2, NUM_WAVES))
    unit_vectors = np.stack([np.cos(directions), np.sin(directions)], -1)  # (2, NUM_WAVES, 2)
    waves = (2 * np.pi / lengths)[..., None] * unit_vectors
    colours = draw.random((2, 3)) * 2 - 1
    largest = np.abs(colours).max(1, keepdims=True)  # (2, 1)
    colours *= contrast * np.array([[1.0], [0.6]]) / largest
    phases = 2 * np.pi * draw.random((2, NUM_WAVES))
    base = 95 + 65 * draw.random(3)
    return _Texture(waves, phases, base, colours)


def _object(
    draw: np.random.Generator, frames: int, size: tuple[int, int], turning: bool, scaling: bool, speed: float
) -> _Object:
    """Draw an object whose sides and path keep it in the frame, whatever its pose."""
    time = np.arange(frames)
    side = min(size) * (0.17 + 0.05 * draw.random())
    aspect = 1.7 ** (2 * draw.random() - 1)
    sides = side * np.array([aspect, 1 / aspect]) ** 0.5
    texture = _texture(draw, 0.18 * side, 0.6 * side, 70)
    is_round = draw.random() < 0.5
    sign = 1 if draw.random() < 0.5 else -1

    rate = sign * (2 + 4 * draw.random())
    wobble = _swing(draw, time, 40, 80)
    growth = _swing(draw, time, 60, 120)
    degrees = (rate * time + 12 * (wobble - wobble[0])) * turning
    scales = np.exp(0.2 * (growth - growth[0]) * scaling)
    largest_scale = np.exp(0.2 * (1 - growth[0]) * scaling)
    reach = np.hypot(*sides) / 2 * largest_scale  # from its centre to a corner, at most

    path = np.empty((frames, 2))  # in [-1, 1]
    for axis in range(2):
        slow = _swing(draw, speed * time, 80, 140)
        fast = _swing(draw, speed * time, 40, 80)
        path[:, axis] = 0.7 * slow + 0.3 * fast
    middle = (np.array(size[::-1]) - 1) / 2
    object_centres = middle + (middle + 0.5 - reach) * path
    return _Object(texture, is_round, object_centres, degrees, scales, sides)


def _swing(draw: np.random.Generator, time: Array, shortest: float, longest: float) -> Array:
    """Return a sine (T,) whose period, ``shortest`` to ``longest`` frames, and phase are drawn."""
    period = shortest + (longest - shortest) * draw.random()
    phase = draw.random()
    return np.sin(2 * np.pi * (time / period + phase))


def _paint(
    texture: _Texture,
    x: Array,
    y: Array,
    origin: Array,
    degrees: float = 0.0,
    scale: float = 1.0,
) -> Array:
    """Return the texture at columns x and rows y, rotated and scaled about ``origin``: (y, x, 3).

    A plane wave is a sum of two products of a function of x and a function of y,

        cos(a x + b y) = cos(b y) cos(a x) - sin(b y) sin(a x),

    so a field, which is a sum of waves, is one product of matrices.
    """
    cos, sin = cos_sin(degrees)
    rotation = np.array([[cos, -sin], [sin, cos]])
    waves = texture.waves @ rotation / scale  # (2, NUM_WAVES, 2)
    phases = texture.phases - waves @ origin
    along_x = waves[..., :1] * x + phases[..., None]  # (2, NUM_WAVES, columns)
    along_x = along_x.astype(np.float32)
    along_y = waves[..., 1:] * y  # (2, NUM_WAVES, rows)
    along_y = along_y.astype(np.float32)
    left = np.concatenate([np.cos(along_y), np.sin(along_y)], 1)  # (2, 2 waves, rows)
    left = left.transpose(0, 2, 1)  # (2, rows, 2 waves)
    right = np.concatenate([np.cos(along_x), -np.sin(along_x)], 1)  # (2, 2 waves, columns)
    fields = left @ right  # (2, rows, columns)
    gain = 2 * (2 / NUM_WAVES) ** 0.5  # a sum of n waves has a deviation of √(n / 2)
    np.tanh(fields * gain, out=fields)
    colours = fields.reshape(2, -1).T @ texture.colours.astype(np.float32)  # (rows * columns, 3)
    colours = colours + texture.base.astype(np.float32)
    return colours.reshape(len(y), len(x), 3)


def _draw(thing: _Object, index: int, image: Array) -> None:
    """Draw the object over ``image``, in place; pixels at its border are mixed."""
    x0, y0 = thing.centres[index].tolist()  # plain floats keep the arrays in float32
    degrees = float(thing.degrees[index])
    scale = float(thing.scales[index])
    reach = thing.upright[index] / 2 + 1
    left, top = _pixel(thing.centres[index] - reach, image)
    right, bottom = _pixel(thing.centres[index] + reach + 1, image)
    x = np.arange(left, right, dtype=np.float32)
    y = np.arange(top, bottom, dtype=np.float32)

    # in the object's own axes, from its centre
    cos, sin = map(float, cos_sin(degrees))
    dx, dy = x - x0, (y - y0)[:, None]
    u = cos * dx - sin * dy
    v = sin * dx + cos * dy
    half_width, half_height = (thing.sides * scale / 2).tolist()
    if thing.round:
        # about how many pixels lie between here and the border
        radius = np.hypot(u / half_width, v / half_height)  # 1 on the border
        inside = (1 - radius) * min(half_width, half_height)
        cover = np.clip(inside + 0.5, 0, 1)
    else:
        cover_u = np.clip(half_width + 0.5 - np.abs(u), 0, 1)
        cover_v = np.clip(half_height + 0.5 - np.abs(v), 0, 1)
        cover = cover_u * cover_v
    part = image[top:bottom, left:right]
    colours = _paint(thing.texture, x, y, np.array([x0, y0]), degrees, scale)
    part += cover[..., None] * (colours - part)


def _pixel(point: Array, image: Array) -> list[int]:
    """Return the column and row nearest to a point, inside the image or at its end."""
    rows, columns = image.shape[:2]
    nearest = np.round(point).astype(int)
    return np.clip(nearest, 0, [columns, rows]).tolist()
