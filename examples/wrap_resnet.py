"""Add the loss to a ResNet of the usual kind (in-place ReLU, strided blocks); the model is not touched."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ien


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.layer1 = nn.Sequential(BasicBlock(16, 16, 1), BasicBlock(16, 16, 1))
        self.layer2 = nn.Sequential(BasicBlock(16, 32, 2), BasicBlock(32, 32, 1))
        self.fc = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layer2(self.layer1(self.stem(x))).mean((2, 3)))


torch.manual_seed(0)
model = ResNet()
keys = list(model.state_dict())
# 33 pixels, not 32: with an odd size the strided convolutions commute with quarter turns and flips
x, y = torch.rand(16, 3, 33, 33), torch.randint(10, (16,))
objective = ien.EquivarianceLoss(ien.rotation(4) * ien.reflection(), ["layer1", "layer2"], feature_groups=8)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(10):
    out = objective(model, x)
    (F.cross_entropy(out.output, out.repeat(y)) + out.loss).backward()
    optimizer.step()
    optimizer.zero_grad()
print({layer: round(term.item(), 4) for (_, layer), term in out.terms.items()})
print("the state_dict has not changed:", list(model.state_dict()) == keys)
