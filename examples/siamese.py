"""From primitives: a Siamese net runs its backbone twice, and only the second input is rotated."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ien


class Siamese(nn.Module):
    """Correlates the features of a template with those of a search image."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 5), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3)
        )

    def forward(self, template: Tensor, search: Tensor) -> Tensor:
        z, x = self.backbone(template), self.backbone(search)
        return F.conv2d(x.flatten(0, 1)[None], z.flatten(0, 1)[:, None], groups=z.shape[0] * z.shape[1])


torch.manual_seed(0)
model, group = Siamese(), ien.rotation(4)
template, search = torch.rand(4, 3, 15, 15), torch.rand(4, 3, 31, 31)
g = group.sample(len(search))
with ien.capture(model, "backbone") as features:
    response = model(torch.cat([template, template]), torch.cat([search, group.act(search, g)]))
_, searched = features.all("backbone")  # one entry for each call, in order
h, h_g = ien.group_pool(searched, 4).chunk(2)
loss = ien.equivariance_loss(h, h_g, group, g)
loss.backward()
print(f"response {tuple(response.shape)}, equivariance loss of the search branch {loss.item():.4f}")
