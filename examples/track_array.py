"""Track in numpy arrays, with any network that has a stride."""

import numpy as np
from torch import Tensor, nn

from ien.tracking import Tracker, score
from ien.tracking.data.synthetic import synthetic


class Pixels(nn.Module):
    """Features that need no training: every fourth pixel, all crops of one length.

    ien.load("runs/tracking/…") gives a trained network instead, ien.models.create("siamfc") an untrained one.
    """

    stride = 4  # pixels of the image from one place of the features to the next

    def forward(self, x: Tensor) -> Tensor:
        pixels = x[..., ::4, ::4] - 0.5
        return 50 * pixels / pixels.flatten(1).norm(dim=1)[:, None, None, None]


# 60 frames (240, 320, 3) uint8 of an object that moves, rotates and scales, with its box x, y, w, h in each
clip = synthetic(seed=5)
frames = [clip.frame(i) for i in range(len(clip))]
print(f"a box that never moves: {score(np.repeat(clip.boxes[:1], len(clip), 0), clip.boxes)}")

for templates in (1, 8):
    tracker = Tracker(Pixels(), rotations=templates)  # angles at which it is looked for
    tracker.init(frames[0], clip.boxes[0])
    boxes, angles = [clip.boxes[0]], [0.0]
    for frame in frames[1:]:
        box, confidence, angle = tracker.update(frame)
        boxes.append(box)
        angles.append(angle)
    known = angles if templates > 1 else None
    print(f"templates {templates}: {score(boxes, clip.boxes, known, clip.angles)}")
