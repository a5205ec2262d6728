"""A transformation without a formula or inverse: a layer that minds less if half of a digit is hidden."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ien
from ien.data import embedded_digits


def hide_left(x: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(x[..., : x.shape[-1] // 2]), x[..., x.shape[-1] // 2 :]], dim=-1)


def hide_right(x: Tensor) -> Tensor:
    return hide_left(x.flip(-1)).flip(-1)


# say what it does to feature maps; "identity": they should stay as they are
occlude = ien.custom("occlude", {"left": hide_left, "right": hide_right}, feature_actions="identity")
x, y = embedded_digits()

for beta in (0.0, 1.0):
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("early", nn.Sequential(nn.Conv2d(1, 16, 5, stride=2), nn.BatchNorm2d(16), nn.ReLU()))
    model.add_module("late", nn.Sequential(nn.Conv2d(16, 32, 5, stride=2), nn.BatchNorm2d(32), nn.ReLU()))
    model.add_module("classify", nn.Sequential(nn.Flatten(), nn.Linear(512, 10)))
    objective = ien.EquivarianceLoss(occlude, {"late": beta}, feature_groups=2, normalize=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(100):
        batch = torch.arange(64 * step, 64 * step + 64) % 4500
        out = objective(model, x[batch])
        (F.cross_entropy(out.output, out.repeat(y[batch])) + out.loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    report = ien.measure(model, x[4500:], occlude, ["late"], feature_groups=2)
    hidden = model.eval()(hide_left(x[4500:])).argmax(1)
    accuracy = (hidden == y[4500:]).double().mean().item()
    error = report.layers["late"].relative
    print(f"β = {beta}: relative error {error:.2f}; {accuracy:.0%} read with the left half hidden")
