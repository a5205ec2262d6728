"""Make an ordinary CNN equivariant before its first step, and train it as usual: it stays equivariant."""

import torch
import torch.nn.functional as F
from torch import nn

import ien
from ien.data import embedded_digits


def block(before: int, after: int, kernel: int, padding: int = 0) -> nn.Sequential:
    conv = nn.Conv2d(before, after, kernel, padding=padding, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after), nn.ReLU())


torch.manual_seed(0)
rng = torch.Generator().manual_seed(0)
x, y = embedded_digits()
# maps of 24, 12, 8 and 4 pixels rotate exactly; the linear layer becomes invariant, without a group pool
model = nn.Sequential(
    block(1, 16, 7, padding=1),
    nn.MaxPool2d(2),
    block(16, 32, 5),
    nn.MaxPool2d(2),
    block(32, 64, 3, padding=1),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(64, 10),
)
keys, layers, steps = list(model.state_dict()), ["0", "2", "4"], 120
optimizer = torch.optim.Adam(model.parameters())
objective = ien.recommended(model, "rot4", feature_groups=4, input=x[:64], optimizer=optimizer)
print(objective.start)

schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-2, total_steps=steps)
for step in range(steps):
    batch = torch.randint(4500, (64,), generator=rng)
    loss = F.cross_entropy(model(x[batch]), y[batch])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
    if step % 30 == 0:
        print(f"step {step}: loss {loss.item():.2f}")
print(ien.measure(model, x[4500:], "rot4", layers, 4, labels=y[4500:], floors=False, action="regular"))
print("still an ordinary network:", list(model.state_dict()) == keys)
