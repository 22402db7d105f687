"""A constructor that runs its own feature extractor on zeros to learn a size."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Squeeze(nn.Module):
    def __init__(self, channels, factor):
        super(Squeeze, self).__init__()
        self.reduce = nn.Conv2d(channels, channels // factor, 1)
        self.expand = nn.Conv2d(channels // factor, channels, 1)

    def forward(self, x):
        s = x.mean(dim=[2, 3], keepdim=True)
        return x * torch.sigmoid(self.expand(F.relu(self.reduce(s))))


class Model(nn.Module):
    def __init__(self, input_shape, n_actions):
        super(Model, self).__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(input_shape[0], 8, kernel_size=3, stride=2),
            nn.ReLU(),
            Squeeze(8, 2),
            nn.MaxPool2d(2),
        )
        n = self._get_conv_out(input_shape)
        self.fc = nn.Sequential(nn.Linear(n, 10), nn.ReLU(), nn.Linear(10, n_actions))

    def _get_conv_out(self, shape):
        o = self.conv(torch.zeros(1, *shape))
        return int(torch.prod(torch.tensor(o.size())))

    def forward(self, x):
        conv_out = self.conv(x).view(x.size()[0], -1)
        return self.fc(conv_out)


def get_inputs():
    return [torch.randn(4, 2, 12, 12)]


def get_init_inputs():
    return [(2, 12, 12), 6]
