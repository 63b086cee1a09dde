"""Problems whose minimum over a set is known, and two networks that are trained at several widths."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.problems.characters import SYMBOLS, characters
from examples.papers import data

Cost = Callable[[Tensor], Tensor]


def linear(shape: tuple[int, ...], radius: float = 1.0) -> tuple[Cost, float]:
    """Return a linear cost, and its minimum over the sphere: -<C, W>, at C/‖C‖.

    Args:
        shape: Of the weight.
        radius: Of the sphere.
    """
    C = torch.randn(shape, dtype=torch.float64)
    return lambda W: -(C * W).sum() / C.norm(), -radius


def brockett(m: int, n: int) -> tuple[Cost, float]:
    """Return Brockett's cost tr(WᵀAWN), and its minimum over orthonormal columns; A has the norm 1.

    Args:
        m: Rows of the weight.
        n: Columns of the weight.
    """
    A = torch.randn(m, m, dtype=torch.float64)
    A = A + A.mT
    values = torch.linalg.eigvalsh(A)
    A, values = A / values.abs().max(), values / values.abs().max()
    N = torch.arange(1.0, n + 1, dtype=torch.float64)
    return lambda W: (W * (A @ W) * N).sum(), float((values[:n].flip(0) * N).sum())


def of_the_group(n: int) -> tuple[Cost, Tensor, float]:
    """Return the cost -<W, A>, a start, and the minimum over the component of O(n) that has the start.

    Args:
        n: Rows and columns.
    """
    A = torch.randn(n, n, dtype=torch.float64)
    start = torch.linalg.qr(torch.randn_like(A)).Q
    sigma = torch.linalg.svdvals(A)
    sigma[-1] *= torch.linalg.det(start).sign() * torch.linalg.det(A).sign()
    return lambda W: -(W * A).sum(), start, -float(sigma.sum())


def digits(split: str, tiny: bool) -> tuple[Tensor, Tensor]:
    """Return images of MNIST as rows of numbers in [0, 1], and their classes.

    Args:
        split: ``"train"`` or ``"t10k"``.
        tiny: Whether to make up a few images in place of reading the files.
    """
    if tiny:
        return torch.rand(256, 784), torch.randint(10, (256,))
    parts = []
    for kind, header in (("images-idx3", 16), ("labels-idx1", 8)):
        path = data.find(f"mnist/{split}-{kind}-ubyte.gz", "MNIST in its original IDX files")
        parts.append(
            torch.from_numpy(
                np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header).copy()
            )
        )
    return parts[0].reshape(-1, 784).float() / 255, parts[1].long()


def perceptron(width: int) -> nn.Sequential:
    """Return a network 784-w-w-w-10 without biases.

    Args:
        width: w.
    """
    sizes = [784, width, width, width, 10]
    layers: list[nn.Module] = []
    for m, n in itertools.pairwise(sizes):
        layers += [nn.Linear(m, n, bias=False), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Block(nn.Module):
    """A block of a transformer, with normalization before its parts.

    Args:
        width: Of the residual stream.
        heads: Of the attention.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the stream behind the block.

        Args:
            x: The stream ``(batch, time, width)``.
        """
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        read = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(read.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Characters(nn.Module):
    """A transformer that predicts the next of 65 characters.

    Args:
        width: Of the residual stream.
        blocks: How many.
        context: Longest text.
    """

    def __init__(self, width: int = 64, blocks: int = 2, context: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, width)
        self.position = nn.Parameter(0.02 * torch.randn(context, width))
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 16)) for _ in range(blocks)))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, SYMBOLS, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        """Return logits of the next characters.

        Args:
            text: Numbers of characters ``(batch, time)``.
        """
        x = self.embedding(text) + self.position[: text.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def text(tiny: bool) -> tuple[Tensor, Tensor]:
    """Return characters to train on and to validate with.

    Args:
        tiny: Whether to make up a few in place of reading the file.
    """
    whole = torch.randint(SYMBOLS, (4000,)) if tiny else characters(10**7)
    cut = len(whole) * 9 // 10
    return whole[:cut], whole[cut:]
