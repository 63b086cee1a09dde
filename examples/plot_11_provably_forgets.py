r"""
A recurrent network that provably forgets
=========================================

Two trajectories of an attacked ReLU network stay inside an envelope that is known beforehand.

Does a recurrent network forget where it started from? A spectral radius below 1 does not say so: it is about
a linear map, and a ReLU network applies another one at each step. This tutorial trains a network that forgets
at a given rate, for every input, and sets an attack on it: inputs and starts that keep two trajectories apart
as long as they can. They stay inside an envelope that is known beforehand.
"""

# sphinx_gallery_thumbnail_path = 'thumbnails/plot_11_provably_forgets.png'
import matplotlib.pyplot as plt
import numpy as np
import torch

import spectral_param as sp

torch.manual_seed(0)

# %%
# What is proven
# --------------
# The network is :math:`h_t = \mathrm{relu}(U x_t + W h_{t-1} + b)`. Let two states read the same input. ReLU
# has slopes between 0 and 1, so the difference of the next states is :math:`D W (h - h')`, where D is
# diagonal with entries in [0, 1]. Which D it is depends on the input. But every D commutes with every
# diagonal Θ, so
#
# .. math:: ‖Θ(h_t - h_t')‖ ≤ ‖ΘWΘ^{-1}‖\, ‖Θ(h_{t-1} - h_{t-1}')‖.
#
# :class:`spectral_param.nn.ContractingRNN` keeps :math:`‖ΘWΘ^{-1}‖_2` at most at the ``rate``, for all values
# of its parameters. Θ is trained with W.

RATE, UNITS = 0.95, 32
rnn = sp.nn.ContractingRNN(1, UNITS, rate=RATE, batch_first=True)

# %%
# Train it
# --------
# The task: the sum of the last numbers of a sequence, the older the less, :math:`y_t = \sum_k 0.9^k x_{t-k}`.
# It needs a memory of some twenty steps.


def batch(size=32, length=40):
    """Return sequences ``(size, length, 1)`` and their sums."""
    x = torch.rand(size, length, 1) - 0.5
    y = torch.zeros_like(x)
    for t in range(length):
        y[:, t] = x[:, t] + (0.9 * y[:, t - 1] if t > 0 else 0)
    return x, y


def train(network):
    """Train the network with a linear output, and return the losses."""
    head = torch.nn.Linear(UNITS, 1)
    optimizer = torch.optim.Adam([*network.parameters(), *head.parameters()], lr=3e-3)
    losses = []
    for _ in range(300):
        x, y = batch()
        loss = torch.nn.functional.mse_loss(head(network(x)[0]), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


losses = train(rnn)
figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
ax.plot(losses)
ax.set(yscale="log", xlabel="step", ylabel="mean squared error")
ax.set_title("Training of a network that forgets at the rate 0.95")
plt.show()

variance = batch(500)[1].var().item()
assert np.mean(losses[-20:]) < 0.05 * variance

# %%
# The certificate
# ---------------
# :func:`spectral_param.analysis.lyapunov_certificate` returns Θ and the proven rate of any weight. Beside it
# stand the spectral radius, which no proof can go below, and the norm of W, which may be above 1.

W = rnn.cells[0].weight_hh.detach().double()
certificate = sp.analysis.lyapunov_certificate(W, RATE, metric="diagonal")
norm = torch.linalg.matrix_norm(W, 2).item()
print(f"rate        {certificate.rate:.4f}")
print(f"radius      {certificate.radius:.4f}")
print(f"norm        {norm:.4f}")
print(f"cond Θ      {certificate.condition:.2f}")

assert certificate.rate <= RATE * (1 + 1e-6)

# %%
# Attack it
# ---------
# Adam looks for two starts and for an input that keep the trajectories as far apart as possible at the end,
# in the norm ‖Θ·‖. As a comparison, the same attack is set on a plain ``torch.nn.RNN`` with ReLU, trained on
# the same task.


def distances(step, theta, starts, inputs):
    """Return ‖Θ(h - h')‖ at all times of two trajectories with the same inputs."""
    h, found = starts, []
    for x in [None, *inputs]:
        h = h if x is None else step(x, h)
        found.append((theta * (h[0] - h[1])).norm())
    return torch.stack(found)


def attacked(step, theta, steps=40, iterations=120):
    """Return the distances of the trajectories that an attack has found, divided by the first one."""
    starts = torch.randn(2, UNITS, dtype=torch.float64, requires_grad=True)
    inputs = torch.randn(steps, 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([starts, inputs], lr=5e-2)
    for _ in range(iterations):
        found = distances(step, theta, starts, inputs)
        optimizer.zero_grad()
        (-(found[-1] / found[0] + 1e-30).log()).backward()
        optimizer.step()
    return (found / found[0]).detach()


def step_of(U, W, b):
    """Return one step of a ReLU network in double precision."""
    U, W, b = (t.detach().double() for t in (U, W, b))
    return lambda x, h: torch.relu(x @ U.mT + h @ W.mT + b)


cell = rnn.cells[0]
ours = attacked(step_of(cell.weight_ih, cell.weight_hh, cell.bias), certificate.scaling)

plain = torch.nn.RNN(1, UNITS, nonlinearity="relu", batch_first=True)
torch.nn.init.orthogonal_(plain.weight_hh_l0)
train(plain)
bias = plain.bias_ih_l0 + plain.bias_hh_l0
theirs = attacked(step_of(plain.weight_ih_l0, plain.weight_hh_l0, bias), torch.ones(UNITS).double())

time = np.arange(41)
figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
ax.fill_between(time, 1e-6, RATE**time, color="C0", alpha=0.15, label="proven: 0.95 to the power of time")
ax.plot(time, ours, color="C0", label="ContractingRNN under attack")
ax.plot(time, theirs, color="C3", label="torch.nn.RNN under attack")
ax.set(yscale="log", xlabel="steps", ylabel="distance of two trajectories", ylim=(1e-3, None))
ax.set_title("Two trajectories that read the same inputs")
ax.legend(fontsize="small")
plt.show()

envelope = torch.tensor(RATE**time)
assert (ours <= envelope * (1 + 1e-5) + 1e-12).all()
print(f"after 40 steps: {ours[-1]:.1e} of at most {envelope[-1]:.1e}; the plain network {theirs[-1]:.1e}")

# %%
# Nothing is proven of the plain network. It has learnt to forget on these data; another seed or task may give
# one that does not.
#
# What voids the proof
# --------------------
# - Feedback of the output into the input. It adds the product of the two maps to W.
# - Another activation. GELU has slopes up to 1.13; modReLU with a positive bias jumps.
# - A network with gates: an LSTM has no such W.
#
# In the user's own norm the factor cond Θ comes on top; ``growth=`` bounds it. For a fixed reservoir
# :func:`spectral_param.init.echo_state_` does the same, see :doc:`/reservoirs`. Which bound is for which
# network is in the table of :doc:`/bounds`.
