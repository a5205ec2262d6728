"""Fine-tune a ResNet-18 with torchvision's state_dict keys: first without the loss, then with it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ien
from ien.data import embedded_digits


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        shortcut = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)]
        self.downsample = nn.Sequential(*shortcut) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    def __init__(self, classes: int, width: int = 64) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        for k, inputs in enumerate([width, width, 2 * width, 4 * width]):
            blocks = BasicBlock(inputs, width << k, 1 + (k > 0)), BasicBlock(width << k, width << k, 1)
            self.add_module(f"layer{k + 1}", nn.Sequential(*blocks))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return self.fc(self.avgpool(self.layer4(self.layer3(self.layer2(self.layer1(x))))).flatten(1))


def train(model: nn.Module, beta: float, steps: int, lr: float) -> None:
    """Train with or without the loss (beta 0) on the same views: fine-tuning adds the loss, nothing else."""
    objective = ien.EquivarianceLoss("rot4", dict.fromkeys(LAYERS, beta), feature_groups=4)
    optimizer = torch.optim.Adam(model.train().parameters(), lr)
    for batch in torch.randint(4500, (steps, 32), generator=rng):
        out = objective(model, x[batch], generator=rng)
        (F.cross_entropy(out.output, out.repeat(y[batch])) + out.loss).backward()
        optimizer.step(), optimizer.zero_grad()
    print(ien.measure(model, x[4500:], "rot4", LAYERS, 4, labels=y[4500:], floors=False), "\n")


LAYERS = ["layer1", "layer2", "layer3"]
torch.manual_seed(0)
rng = torch.Generator().manual_seed(0)
x, y = embedded_digits()
x = ien.rotation(360).act(x, torch.randint(360, (len(x),), generator=rng))
x = F.interpolate(x, 33, mode="bilinear").expand(-1, 3, -1, -1)  # 33: ien.doctor calls it exact
train(model := ResNet18(10, width=16), beta=0.0, steps=200, lr=3e-3)
train(model, beta=0.3, steps=200, lr=1e-3)
print(ResNet18(10, width=16).load_state_dict(model.state_dict()), "in the unchanged class")
