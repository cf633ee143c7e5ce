"""Small pre-norm transformer encoder over tokens or over image patches.

Sources: Vaswani et al., 2017; patches: Dosovitskiy et al., 2021.
"""

from __future__ import annotations

import torch
from torch import nn

from laggard.core.errors import InputError

WIDTH = 64
HEADS = 4
LAYERS = 2
# Images below this height get patches of 2x2 pixels, others 4x4.
SMALL_IMAGE = 16


class Transformer(nn.Module):
    """Two encoder layers of width 64 and four heads, mean pooling, and one dense layer.

    Args:
        input_shape: (channels, height, width) of an image, or (length,) of a token sequence.
        classes: number of outputs.
        vocabulary: number of different tokens; None for images.

    Raises:
        InputError: the image cannot be divided into patches, or the vocabulary is unknown.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int, vocabulary: int | None) -> None:
        super().__init__()
        self.embed, length = _create_embedding(input_shape, vocabulary)
        self.position = nn.Parameter(torch.randn(length, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(
            WIDTH,
            HEADS,
            2 * WIDTH,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(
            layer, LAYERS, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False
        )
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute logits (batch, classes).

        The input is (batch, channels, height, width) floats or (batch, length) integers.
        """
        hidden_blw: torch.Tensor = self.encoder(self.embed(x) + self.position)
        logits: torch.Tensor = self.head(hidden_blw.mean(dim=1))
        return logits


def _create_embedding(
    input_shape: tuple[int, ...], vocabulary: int | None
) -> tuple[nn.Module, int]:
    if len(input_shape) == 1:
        if vocabulary is None:
            raise InputError(
                "the transformer needs the number of different tokens — give `vocabulary`"
            )
        return nn.Embedding(vocabulary, WIDTH), input_shape[0]
    channels, height, width = input_shape
    patch = 2 if height < SMALL_IMAGE else 4
    if height % patch or width % patch:
        raise InputError(
            f"images of {height}x{width} pixels cannot be divided into patches of {patch}x{patch} —"
            " resize them"
        )
    patches = nn.Sequential(nn.Conv2d(channels, WIDTH, patch, patch), nn.Flatten(2), _Transpose())
    return patches, (height // patch) * (width // patch)


class _Transpose(nn.Module):
    """Layer that swaps the last two axes: (batch, width, length) to (batch, length, width)."""

    def forward(self, x_bwl: torch.Tensor) -> torch.Tensor:
        return x_bwl.transpose(1, 2)
