"""Train the same CNN twice on upright digits, plain and tied, and show it digits in four orientations."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ien
from ien.data import embedded_digits

TRAINED_ON, STEPS = 4000, 200


def block(before: int, after: int, kernel: int, padding: int = 0) -> nn.Sequential:
    conv = nn.Conv2d(before, after, kernel, padding=padding, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after), nn.ReLU())


def train(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """An ordinary loop: it does not know which of the two models it trains."""
    rng = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=STEPS)
    for _ in range(STEPS):
        batch = torch.randint(TRAINED_ON, (64,), generator=rng)
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


def network() -> nn.Sequential:
    """Maps of 24, 12, 8 and 4 pixels rotate exactly; flattened ones would not, so they are pooled first."""
    first = [block(1, 32, 7, padding=1), nn.MaxPool2d(2)]
    second = [block(32, 64, 5), nn.MaxPool2d(2)]
    third = [block(64, 96, 3, padding=1), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*first, *second, *third, nn.Flatten(), nn.Linear(96, 10))


def main() -> None:
    torch.manual_seed(0)
    x, y = embedded_digits()
    plain = network()
    model = copy.deepcopy(plain)
    print(ien.make_equivariant(model, "rot4", x[:64]))

    print("accuracy on digits rotated by 0°, 90°, 180° and 270°")
    for name, net in {"plain": plain, "tied": model}.items():
        train(net, x, y)
        report = ien.measure(net, x[TRAINED_ON:], "rot4", labels=y[TRAINED_ON:], floors=False)
        print(name, *(f"{share:.1%}" for share in report.accuracy.values()))
    ien.make_plain(model)
    print("an ordinary network again:", list(model.state_dict()) == list(plain.state_dict()))


if __name__ == "__main__":
    main()
