"""A network in the style of 2018: old-style super, a helper block with a class attribute, branches, a star import."""

from __future__ import print_function

from math import *

import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 3
num_classes = 5


def conv_block(in_planes, out_planes, stride=1):
    return nn.Sequential(
        nn.Conv2d(in_planes, out_planes, kernel_size=3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(out_planes),
        nn.ReLU(inplace=True),
    )


class Block(nn.Module):
    expansion = 2

    def __init__(self, in_planes, planes, stride=1):
        super(Block, self).__init__()
        self.conv1 = conv_block(in_planes, planes, stride)
        self.conv2 = conv_block(planes, planes * self.expansion)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes * Block.expansion:
            self.shortcut = nn.Conv2d(in_planes, planes * Block.expansion, kernel_size=1, stride=stride)

    def forward(self, x):
        return F.relu(self.conv2(self.conv1(x)) + self.shortcut(x))


class Model(nn.Module):
    def __init__(self, depth, width=4):
        super(Model, self).__init__()
        self.in_planes = width
        self.stem = conv_block(2, width)
        self.layers = self._make_layer(Block, width, depth)
        self.fc = nn.Linear(width * Block.expansion, num_classes)
        self.scale = sqrt(width)

    def _make_layer(self, block, planes, depth):
        layers = []
        for i in range(depth):
            layers.append(block(self.in_planes, planes, stride=2 if i == 0 else 1))
            self.in_planes = planes * block.expansion
        return nn.Sequential(*layers)

    def forward(self, x):
        x = self.layers(self.stem(x))
        x = F.adaptive_avg_pool2d(x, 1)
        x = torch.flatten(x, 1)
        return self.fc(x) * self.scale


def get_inputs():
    return [torch.rand(batch_size, 2, 9, 9)]


def get_init_inputs():
    return [2]


if __name__ == "__main__":
    model = Model(*get_init_inputs())
    print(model(*get_inputs()).shape)
