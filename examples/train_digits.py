"""Train a small CNN on rotated digits with the loss, and measure each layer before and after."""

import torch
import torch.nn.functional as F
from torch import nn

import ien
from ien.data import embedded_digits

torch.manual_seed(0)
rng = torch.Generator().manual_seed(0)
x, y = embedded_digits()
x = ien.rotation(360).act(x, torch.randint(360, (len(x),), generator=rng))  # every digit at its own angle

# map sizes 24, 12, 8 and no stride that skips a border: quarter turns can be exact
model = nn.Sequential(
    nn.Sequential(nn.Conv2d(1, 16, 7, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
    nn.MaxPool2d(2),
    nn.Sequential(nn.Conv2d(16, 32, 5), nn.BatchNorm2d(32), nn.ReLU()),
    ien.GroupPool(4),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(8, 10),
)
layers = ["0", "2"]
objective = ien.EquivarianceLoss(ien.rotation(4), layers, feature_groups=4)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

print("before\n", ien.measure(model, x[4500:], "rot4", layers, feature_groups=4), sep="")
for step in range(60):
    batch = torch.randint(4500, (64,), generator=rng)
    out = objective(model, x[batch], generator=rng)
    loss = F.cross_entropy(out.output, out.repeat(y[batch])) + out.loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0:
        terms = ", ".join(f"{layer} {term.item():.3f}" for (_, layer), term in out.terms.items())
        print(f"step {step}: loss {loss.item():.3f} (layers {terms})")
print("after\n", ien.measure(model, x[4500:], "rot4", layers, feature_groups=4), sep="")
