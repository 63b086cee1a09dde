r"""
Why networks forget, and one that does not
==========================================

The gradient over a hundred steps: gone in an LSTM, kept in an ENRNN.

A recurrent network reads a sequence one step at a time. To learn that the answer depends on something it
read a hundred steps ago, training needs a gradient that survives a hundred steps back. In ordinary networks
this gradient vanishes. This tutorial measures how fast, shows the reason in the eigenvalues of the recurrent
matrix, and trains :class:`spectral_param.nn.ENRNN`, whose recurrent matrix has an orthogonal block that
keeps the gradient, beside an LSTM.
"""

# %%
# The adding problem
# ------------------
# Each sequence has ``T`` numbers between 0 and 1. Two of them are marked, one in each half. The network reads
# a number and its mark at every step, and must say the sum of the two marked numbers at the end. Always
# answering 1 has a mean squared error of 1/6. A network beats 1/6 only if it remembers.

# sphinx_gallery_thumbnail_path = 'thumbnails/plot_1_why_networks_forget.png'
import matplotlib.pyplot as plt
import torch
from torch import nn

import spectral_param as sp

T = 100


def adding_problem(batch, generator):
    """Return inputs of shape (T, batch, 2) and targets of shape (batch,)."""
    numbers = torch.rand(T, batch, generator=generator)
    marks = torch.zeros(T, batch)
    for half in marks.chunk(2):
        half.scatter_(0, torch.randint(len(half), (1, batch), generator=generator), 1.0)
    return torch.stack([numbers, marks], dim=-1), (numbers * marks).sum(dim=0)


x, target = adding_problem(8, torch.Generator().manual_seed(0))

figure, ax = plt.subplots(figsize=(8, 2.6), layout="constrained")
numbers, marks = x[:, 0].unbind(dim=-1)
ax.bar(range(T), numbers, color=["C3" if mark else "0.8" for mark in marks], width=0.9)
ax.set(xlabel="time step", ylabel="number", xlim=(-1, T))
ax.set_title(f"One sequence of the adding problem: the two red numbers add up to {target[0]:.2f}")
plt.show()

# %%
# Three networks
# --------------
# ``ENRNN`` is used like ``torch.nn.RNN``, except that its hidden units come in two blocks. The *long-term*
# block has an orthogonal recurrent matrix, so it neither shrinks nor stretches what it holds. The
# *short-term* block has a given spectral radius (the largest modulus of an eigenvalue), here at most 0.9,
# and forgets. The sizes give the LSTM about as many free parameters as the ENRNN has.


class Adder(nn.Module):
    """A recurrent network, and a linear map of its last output."""

    def __init__(self, rnn, size):
        super().__init__()
        self.rnn = rnn
        self.head = nn.Linear(size, 1)

    def forward(self, x):
        """Return one number for each sequence, (batch,)."""
        output, _ = self.rnn(x)
        return self.head(output[-1]).squeeze(-1)


torch.manual_seed(0)
models = {
    "ENRNN": Adder(sp.nn.ENRNN(2, long_size=40, short_size=20, radius=0.9), 60),
    "RNN": Adder(nn.RNN(2, 45), 45),
    "LSTM": Adder(nn.LSTM(2, 22), 22),
}
colors = {"RNN": "C7", "LSTM": "C1", "ENRNN": "C0"}
for name, model in models.items():
    print(f"{name:6} {sp.num_free_parameters(model):5} free parameters")

# %%
# How far back does the gradient reach?
# -------------------------------------
# :func:`spectral_param.analysis.loss_gradient_norms` returns the norm of the gradient of the loss with
# respect to the state :math:`h_t`, for every ``t``. The loss is taken at the end, so the gradient travels
# from right to left in the picture. Nothing is trained yet.


def reach(model):
    """Return the norms of the gradient of the loss at the last step by h_t, (T,), for the whole state."""
    size = model.head.in_features
    norms = sp.analysis.loss_gradient_norms(
        model.rnn,
        x,
        lambda output: (model.head(output[-1])[:, 0] - target).square().sum(),
        block_sizes=[size],
    )
    return norms[0].mean(dim=0)  # the mean over the 8 sequences


figure, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
at_start = {name: reach(model) for name, model in models.items()}
for name, norms in at_start.items():
    sp.analysis.plot_loss_gradient_norms(norms, ax, label=name, color=colors[name])
ax.set_xlabel("time step t")
ax.set_title("Gradient of the final loss with respect to the state at step t, before training")
ax.legend()
plt.show()

lost = {name: (norms[0] / norms[-1]).item() for name, norms in at_start.items()}
for name, ratio in lost.items():
    print(f"{name:6} first step / last step: {ratio:.0e}")

assert lost["RNN"] < 1e-6
assert lost["LSTM"] < 1e-6
assert lost["ENRNN"] > 0.1

# %%
# The reason: eigenvalues
# -----------------------
# The gradient at step ``t`` is the gradient at the end multiplied by one Jacobian matrix for each step
# between. For the RNN and the ENRNN, near the zero state, this matrix is the recurrent matrix. So what lies
# along an eigenvalue inside the unit circle decays geometrically. PyTorch starts an RNN with all eigenvalues
# inside. The orthogonal block of the ENRNN has its eigenvalues *on* the circle, at the start and after every
# optimizer step.

figure, axes = plt.subplots(1, 2, figsize=(8, 4), layout="constrained")
recurrent = {
    "RNN": models["RNN"].rnn.weight_hh_l0,
    "ENRNN": models["ENRNN"].rnn.cells[0].weight_hh,
}
for ax, (name, W) in zip(axes, recurrent.items(), strict=True):
    sp.analysis.plot_eigenvalues(sp.analysis.eigenvalues(W), ax, color=colors[name], s=22)
    ax.set_title(f"{name}: eigenvalues of W")
figure.suptitle("Eigenvalues of the recurrent matrices before training, and the unit circle")
plt.show()

# %%
# An LSTM has no single matrix to look at. Its forget gate multiplies the memory at each step. PyTorch starts
# the gate near 1/2, so the memory is halved at each step.
#
# Training
# --------
# Both networks see the same sequences in batches of 50, with Adam and gradients clipped to norm 1.
# The learning rate is 1e-2, and 3e-3 for the orthogonal block, which the papers train more slowly than the
# rest: :func:`spectral_param.param_groups` makes the two groups. For the LSTM, 3e-3 and 2e-2 were no better.


def train(model, steps):
    """Return the mean squared error of every training step; each batch is new."""
    groups = sp.param_groups(model, lr=1e-2, constrained_lr=3e-3, constrained=sp.ScaledCayley)
    optimizer = torch.optim.Adam(groups)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        x, target = adding_problem(50, generator)
        loss = (model(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


losses = {name: train(models[name], steps=500) for name in ("LSTM", "ENRNN")}

figure, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
for name, curve in losses.items():
    ax.plot(curve, color=colors[name], alpha=0.25, linewidth=0.8)
    ax.plot(range(19, len(curve)), curve.unfold(0, 20, 1).mean(dim=1), color=colors[name], label=name)
ax.axhline(1 / 6, color="0.3", linestyle=":", label="always answering 1")
ax.set(yscale="log", xlabel="optimizer step", ylabel="mean squared error", ylim=(5e-4, 1))
ax.set_title(f"Adding problem with T = {T}: the ENRNN learns, the LSTM answers 1")
ax.legend(loc="lower left")
plt.show()

final = {name: curve[-100:].mean().item() for name, curve in losses.items()}
for name, error in final.items():
    print(f"{name:6} mean squared error, last 100 steps: {error:.4f}   (always 1: {1 / 6:.4f})")

assert final["ENRNN"] < 0.05
assert final["LSTM"] > 0.12

# %%
# An LSTM can solve this problem too, given more steps; see the end of this page.
#
# What the ENRNN has learned
# --------------------------
# Training has moved the eigenvalues, and the constraint holds: those of the long-term block are on the unit
# circle, those of the short-term block inside the circle of radius 0.9. In the heat maps, each row is a time
# :math:`τ` and each column an earlier time ``t``; the colour says how much the state at :math:`τ` changes
# with the input at ``t``. The short-term block sees a band of recent inputs. The long-term block sees
# everything, and most of all the marked numbers, the bright columns.

enrnn = models["ENRNN"].rnn
W = enrnn.cells[0].weight_hh.detach()
long, short = W[:40, :40], W[40:, 40:]

figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
values = {"long-term": sp.analysis.eigenvalues(long), "short-term": sp.analysis.eigenvalues(short)}
for (name, points), color in zip(values.items(), ("C0", "C2"), strict=True):
    sp.analysis.plot_eigenvalues(points, axes[0], label=name, color=color)
axes[0].legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, frameon=False)
axes[0].set_title("eigenvalues of W")
by_long, by_short = sp.analysis.gradient_norms(enrnn, x[:50, :4])
top = by_long.mean(dim=0).max().item()
for ax, norms, name in zip(axes[1:], (by_short, by_long), ("short-term", "long-term"), strict=True):
    sp.analysis.plot_gradient_norms(norms, ax, vmax=top)
    ax.set_title(f"{name} state: influence of input t")
figure.suptitle("The trained ENRNN: one block forgets, the other keeps")
plt.show()

assert sp.analysis.orthogonality_error(long) < 1e-4
assert sp.functional.spectral_radius(short) < 0.9 + 1e-4

influence, marked = by_long[:, -1], x[:50, :4, 1].mT.bool()  # both (sequences, 50)
assert influence[marked].mean() > 2 * influence[~marked].mean()

# %%
# What to try next
# ----------------
# - Train with ``steps=1200``: the LSTM leaves 1/6 after about 1,000 steps. Then double ``T``.
# - Take ``sp.nn.ScoRNN(2, 60)``, orthogonal altogether, or ``sp.nn.ExpRNN``: every network of
#   :mod:`spectral_param.nn` fits into ``Adder``.
# - Keep your LSTM and constrain its gates: :doc:`plot_2_constrain_your_lstm`.
# - Read why a spectral radius below 1 does not exclude growth for a while: :doc:`plot_7_radius_norm_growth`.
