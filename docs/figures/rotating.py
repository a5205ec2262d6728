"""A digit rotates, and two CNNs look at it: rotating.gif, and one frame of it, rotating.png.

Both are the CNN of ``examples/make_equivariant.py``, trained on upright digits only, one as it is
and one made equivariant to steps of 45°. Each row shows two feature maps of the first block (the
strongest of eight channels, in both networks alike), the same maps rotated back, and the class that
the network names. Around it is a ring with a mark for each angle: green where that class is right.

A minute on one core.
"""

from __future__ import annotations

import copy
import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Wedge
from PIL import Image
from records import HERE
from torch import Tensor, nn

import ien
from ien.data import embedded_digits
from ien.report.palette import METHODS
from ien.report.plots.style import styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

sys.path.append(str(HERE.parents[1] / "examples"))
import make_equivariant as example

GROUP = "rot8"
SHOWN = 4315
"""A seven that neither network was trained on, picked: one is right at every angle, the other at few."""
CHANNELS = (1, 3)
"""Which feature groups are shown: two with clear edges."""
ANGLES = 24
FRAME_MS, LAST_FRAME_MS = 180, 2500
STILL = 9
"""The frame for readers whose browser shows no animation: 135°."""

# places and sizes in units of the card
WIDTH, HEIGHT = 1000, 530
DOTS_PER_UNIT = 0.8
"""Each dot more costs bytes that every reader of the README downloads."""
IMAGE = (126.0, 262.0)
ROWS = (176.0, 388.0)
RING = 892.0
INK, MUTED, LINE, PALE = "#1F2328", "#59636E", "#D1D9E0", "#F3F5F7"
NOTE = "Both were trained on upright digits only. “Right”: of 1,000 other digits, at all angles."
WRONG = "#C1272D"
RIGHT = METHODS["equivariant"]


@dataclass
class Network:
    """What one network makes of the digit at every angle."""

    title: str
    ink: str
    """The colour of its method, dark enough for text and maps."""
    maps: Tensor  # (angles, channels, H, W)
    rotated_back: Tensor  # the same shape
    predictions: list[int]
    accuracy: float
    """Over all test digits at all angles."""


@torch.no_grad()
def look(model: nn.Sequential, title: str, ink: str, x: Tensor, y: Tensor) -> Network:
    """Show a trained network the digit, and all test digits, at every angle."""
    circle = ien.rotation(ANGLES)
    g = torch.arange(ANGLES)
    views = circle.act(x[SHOWN].expand(ANGLES, -1, -1, -1), g)  # (angles, 1, 28, 28)
    maps = ien.group_pool(model[0](views), len(ien.group(GROUP)))  # (angles, groups, 24, 24)
    maps = maps[:, list(CHANNELS)]
    right = 0
    test_x, test_y = x[example.TRAINED_ON :], y[example.TRAINED_ON :]
    for i in range(ANGLES):
        rotated = circle.act(test_x, torch.full((len(test_x),), i))
        right += int((model(rotated).argmax(dim=1) == test_y).sum())
    return Network(
        title,
        ink,
        maps,
        circle.act_on_features(maps, g, inverse=True),
        model(views).argmax(dim=1).tolist(),
        right / (ANGLES * len(test_y)),
    )


# -------------------------------------------------------------------------------------- the card


class Card:
    """A white card that is drawn once; :meth:`show` changes what differs from frame to frame."""

    def __init__(self, digit: Tensor, label: int, networks: list[Network]) -> None:
        self.label = label
        self.networks = networks
        self.figure = Figure(figsize=(WIDTH / 100, HEIGHT / 100), dpi=100 * DOTS_PER_UNIT, facecolor="white")
        self.canvas = FigureCanvasAgg(self.figure)
        self.axes: Axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0))  # y runs down, as in pictures
        self.axes.axis("off")

        circle = ien.rotation(ANGLES)
        large = F.interpolate(digit[None], scale_factor=8, mode="bicubic").clamp(0, 1)  # (1, 1, 224, 224)
        self.digits = circle.act(large.expand(ANGLES, -1, -1, -1), torch.arange(ANGLES))
        self.image = self.disc(IMAGE, 92, self.digits[0, 0], "#000000", (0, 1))
        self.pointer = self.axes.plot([], [], "o", color=INK, markersize=9, zorder=3)[0]
        self.angle = self.text(IMAGE[0], IMAGE[1] + 128, "", 26, weight="bold")
        for x, words in ((IMAGE[0], "image"), (384, "feature maps"), (652, "rotated back"), (RING, "answer")):
            self.text(x, 38, words, 20, MUTED)
        self.text(WIDTH - 28, HEIGHT - 24, NOTE, 16, MUTED, ha="right")

        self.discs: list[tuple[Any, Tensor]] = []  # each with the pictures that it shows
        self.answers: list[Any] = []
        for network, y in zip(networks, ROWS, strict=True):
            self.row(network, y)

    def row(self, network: Network, y: float) -> None:
        self.axes.plot([252, WIDTH - 28], [y - 105, y - 105], color=LINE, lw=1.2)
        self.text(256, y - 82, network.title, 20, network.ink, weight="bold", ha="left")
        self.text(RING, y - 82, f"{100 * network.accuracy:.0f} % right", 20, network.ink, weight="bold")
        for maps, left in ((network.maps, 256), (network.rotated_back, 524)):
            for k in range(len(CHANNELS)):
                everywhere = network.maps[:, k]
                limits = (float(everywhere.quantile(0.1)), float(everywhere.quantile(0.995)))
                place = (left + 61 + 134 * k, y + 6)
                disc = self.disc(place, 60, maps[0, k], network.ink, limits)
                self.discs.append((disc, maps[:, k]))
        self.axes.add_patch(Circle((RING, y + 6), 54, facecolor="none", edgecolor=PALE, lw=12))
        self.answers.append(self.text(RING, y + 7, "", 50, weight="bold"))

    def disc(
        self,
        place: tuple[float, float],
        radius: float,
        picture: Tensor,
        colour: str,
        limits: tuple[float, float],
    ) -> Any:
        """Draw a round picture, from white to a colour."""
        x, y = place
        edge = Circle(place, radius, facecolor="white", edgecolor=LINE, lw=1.5)
        self.axes.add_patch(edge)
        drawn = self.axes.imshow(
            picture,
            cmap=LinearSegmentedColormap.from_list("ramp", ["#FFFFFF", colour]),
            vmin=limits[0],
            vmax=limits[1],
            interpolation="bicubic",
            extent=(x - radius, x + radius, y + radius, y - radius),
            aspect="auto",
            zorder=2,
        )
        drawn.set_clip_path(edge)
        return drawn

    def text(self, x: float, y: float, words: str, pixels: float, colour: str = INK, **more: Any) -> Any:
        points = 0.72 * pixels
        settings = {"ha": "center", "va": "center_baseline", "color": colour, "fontsize": points} | more
        return self.axes.text(x, y, words, **settings)

    def show(self, i: int) -> Image.Image:
        """Return the card at angle i; the rings keep the marks of the angles before it."""
        degrees = 360 * i / ANGLES
        self.image.set_data(self.digits[i, 0])
        self.angle.set_text(f"{degrees:.0f}°")
        # from the top counterclockwise, as the digit rotates
        direction = math.radians(90 + degrees)
        x = IMAGE[0] + 92 * math.cos(direction)
        y = IMAGE[1] - 92 * math.sin(direction)
        self.pointer.set_data([x], [y])
        for disc, pictures in self.discs:
            disc.set_data(pictures[i])
        for network, answer, y in zip(self.networks, self.answers, ROWS, strict=True):
            right = network.predictions[i] == self.label
            answer.set(text=str(network.predictions[i]), color=RIGHT if right else WRONG)
            middle = -90 - degrees  # y runs down
            half = 180 / ANGLES - 0.9
            mark = Wedge(
                (RING, y + 6),
                62,
                middle - half,
                middle + half,
                width=16 if right else 8,  # not by colour alone
                color=RIGHT if right else WRONG,
                lw=0,
            )
            self.axes.add_patch(mark)
        self.canvas.draw()
        return Image.fromarray(np.asarray(self.canvas.buffer_rgba())).convert("RGB")


def two_networks() -> tuple[Tensor, int, list[Network]]:
    """Train both; returns the digit, its class, and what the two make of it."""
    torch.manual_seed(0)
    x, y = embedded_digits()
    ordinary = example.network()
    equivariant = copy.deepcopy(ordinary)
    ien.make_equivariant(equivariant, GROUP, x[:64])
    networks = []
    for model, title, ink in (
        (ordinary, "ordinary CNN", "#4D4D4D"),
        (equivariant, "the same CNN, made equivariant", RIGHT),
    ):
        example.train(model, x, y)
        networks.append(look(model.eval(), title, ink, x, y))
    return x[SHOWN], int(y[SHOWN]), networks


def draw() -> list[Image.Image]:
    with styled():
        card = Card(*two_networks())
        return [card.show(i) for i in range(ANGLES)]


def _shades() -> list[int]:
    """Return the colours of the animation: from white to black, to green and to red."""
    numbers: list[int] = []
    for colour, count in (("#000000", 24), (RIGHT, 20), (WRONG, 6)):
        for i in range(count):
            share = i / (count - 1)
            for channel in bytes.fromhex(colour[1:]):
                numbers.append(round(255 + (channel - 255) * share))
    return numbers


def save_animation(frames: list[Image.Image]) -> None:
    """Write the animation in one palette for all frames, and the still picture."""
    palette = Image.new("P", (1, 1))
    palette.putpalette(_shades())
    small = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    durations = [FRAME_MS] * (ANGLES - 1) + [LAST_FRAME_MS]
    small[0].save(
        HERE / "rotating.gif",
        save_all=True,
        append_images=small[1:],
        duration=durations,
        loop=0,
        optimize=True,
    )
    frames[STILL].save(HERE / "rotating.png", optimize=True)
    for name in ("rotating.gif", "rotating.png"):
        print(f"docs/figures/{name} is written")


if __name__ == "__main__":
    save_animation(draw())
