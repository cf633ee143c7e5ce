"""VGG-11 with a single dense layer.

Source: Simonyan and Zisserman, "Very deep convolutional networks", 2015, configuration A.
"""

from __future__ import annotations

from torch import nn

STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))


def build(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build VGG-11, which has 9 M parameters.

    A pooling layer is left out if the image is too small for it.

    Args:
        input_shape: (channels, height, width).
        classes: number of outputs.
    """
    layers: list[nn.Module] = []
    channels, size = input_shape[0], min(input_shape[1:])
    for stage in STAGES:
        for width in stage:
            convolution = nn.Conv2d(channels, width, 3, padding=1)
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
            layers += [convolution, nn.ReLU()]
            channels = width
        # An image of 1x1 cannot be halved any more.
        if size >= 2:
            layers.append(nn.MaxPool2d(2))
            size //= 2
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
    )
