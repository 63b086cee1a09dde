"""The pictures of "Recurrent networks"."""

import numpy as np
import torch
from landing import AFTER, BEFORE, OTHER, picture

import spectral_param as sp
from examples.papers import record


def blocks():
    """Draw the recurrent matrix of an ENRNN that was trained a little, and its eigenvalues."""
    torch.manual_seed(0)
    rnn = sp.nn.ENRNN(2, long_size=24, short_size=16)
    optimizer = torch.optim.Adam(rnn.parameters(), lr=1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        output, _ = rnn(torch.randn(30, 8, 2))
        (output[-1].sum(dim=-1) - 1).square().mean().backward()
        optimizer.step()
    W = rnn.cells[0].weight_hh.detach()
    matrix, plane = picture(2, (3.2, 3.0))
    # Opaque colours for entries alone: zeros show the page.
    shade = W.abs() / W.abs().max()
    colors = torch.tensor([0x1F, 0x9E, 0x89]) / 255
    image = torch.cat([colors.expand(*W.shape, 3), shade.sqrt()[..., None]], dim=-1)
    matrix.imshow(image.numpy())
    for line in (matrix.axhline, matrix.axvline):
        line(23.5, color=OTHER, linewidth=1)
    matrix.set(xticks=(11.5, 31.5), yticks=(11.5, 31.5), title="|W|")
    matrix.set_xticklabels(["long", "short"])
    matrix.set_yticklabels(["long", "short"])
    circle = np.exp(2j * np.pi * np.linspace(0, 1, 200))
    plane.plot(circle.real, circle.imag, color=OTHER, linewidth=0.8)
    for block, color, label in ((W[:24, :24], AFTER, "long"), (W[24:, 24:], BEFORE, "short")):
        eigenvalues = torch.linalg.eigvals(block)
        plane.plot(eigenvalues.real, eigenvalues.imag, ".", markersize=7, color=color, label=label)
    plane.set(aspect="equal", title="Eigenvalues of W", xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    plane.legend(labelcolor="linecolor", loc="upper left", bbox_to_anchor=(0.95, 1.05), handletextpad=0)


def sizes():
    """Draw the errors of ENRNNs of 160 units on the adding problem over the share of the long-term block."""
    runs = record.read_all()
    names = [name for name in runs if name.startswith("adding-sizes-") and name.endswith("-adam")]
    found = {
        runs[n][0]["config"]["network"]["long_size"] / 160: runs[n][0]["summary"]["best test"] for n in names
    }
    shares = sorted(found)
    (ax,) = picture(size=(4.4, 2.8))
    ax.semilogy([100 * share for share in shares], [found[share] for share in shares], "o-", color=AFTER)
    ax.axhline(1 / 6, color=OTHER, linewidth=0.8)
    ax.annotate("the mean of the targets", (0, 1 / 6), (0, 3), textcoords="offset points", color=OTHER)
    ax.set(xlabel="long-term units, %", ylabel="test error", ylim=(1e-4, 0.5))
