r"""
Gates that forget
=================

What is proven of a trained LSTM, and what a proof costs.

An LSTM was trained elsewhere. Does it forget where it started from, whatever it reads? Nothing can be proven
of it as it is. This tutorial scales it until a rate is proven, trains it further inside the set, and compares
the errors.
"""

# sphinx_gallery_thumbnail_path = 'thumbnails/plot_14_gates_that_forget.png'
import matplotlib.pyplot as plt
import numpy as np
import torch

import spectral_param as sp

torch.manual_seed(0)

# %%
# A trained LSTM
# --------------
# The task: the sum of the last numbers of a sequence, the older the less, :math:`y_t = \sum_k 0.9^k x_{t-k}`,
# of numbers between -1/2 and 1/2.

RATE, BOUND, UNITS = 0.97, 0.5, 24


def batch(size=32, length=40):
    """Return sequences ``(length, size, 1)`` and their sums."""
    x = torch.rand(length, size, 1) - 0.5
    y = torch.zeros_like(x)
    for t in range(length):
        y[t] = x[t] + (0.9 * y[t - 1] if t > 0 else 0)
    return x, y


def train(network, head, steps, lr, after=lambda: None):
    """Train a network with a linear output; ``after`` is called after each tenth step."""
    optimizer = torch.optim.Adam([*network.parameters(), *head.parameters()], lr=lr)
    for step in range(steps):
        x, y = batch()
        loss = torch.nn.functional.mse_loss(head(network(x)[0]), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            after()


@torch.no_grad()
def error(network, head):
    """Return the share of the variance that is not explained."""
    x, y = batch(500)
    return (torch.nn.functional.mse_loss(head(network(x)[0]), y) / y.var()).item()


lstm, head = torch.nn.LSTM(1, UNITS), torch.nn.Linear(UNITS, 1)
train(lstm, head, 400, 1e-2)
errors = {"LSTM as it was trained": error(lstm, head)}

# %%
# What is proven of it
# --------------------
# :func:`spectral_param.analysis.contraction` takes a bound of the inputs, since a forget gate that reads them
# can come near 1. It finds no rate, and says what stands in the way.

found = sp.analysis.contraction(lstm, input_bound=BOUND)
print(found.rate, "-", found.obstacle)

assert found.rate is None

# %%
# Scale it
# --------
# :func:`spectral_param.init.contracting_` multiplies the recurrent weights by the largest factor for which
# the rate is proven. No factor suffices where a forget gate can come above the rate by its bias and its
# input: so first these biases are lowered.


@torch.no_grad()
def scale(network):
    """Lower the biases of forget gates that can exceed 0.95, then scale; return the certificate."""
    rows = slice(UNITS, 2 * UNITS)
    bias = network.bias_ih_l0[rows] + network.bias_hh_l0[rows]
    reach = BOUND * network.weight_ih_l0[rows, 0].abs() + bias
    network.bias_ih_l0[rows] -= (reach - 3.0).clamp(min=0)  # The sigmoid of 3 is 0.953.
    return sp.init.contracting_(network, RATE, BOUND)


before = lstm.weight_hh_l0.detach().norm()
certificate = scale(lstm)
errors["scaled"] = error(lstm, head)
factor = (lstm.weight_hh_l0.detach().norm() / before).item()
print(f"proven rate {certificate.rate:.4f}, recurrent weights times {factor:.3f}")

assert certificate.rate <= RATE
assert factor < 0.5

# %%
# Train it further
# ----------------
# A step of training leads out of the set, so the network is scaled again, here after each tenth step. A
# :class:`spectral_param.nn.ContractingGRU` needs no such care: its rate holds for all values of its
# parameters, and for inputs of any size.

train(lstm, head, 400, 1e-2, after=lambda: scale(lstm))
certificate = scale(lstm)
errors["scaled and trained"] = error(lstm, head)

gru, its_head = sp.nn.ContractingGRU(1, UNITS, rate=RATE), torch.nn.Linear(UNITS, 1)
train(gru, its_head, 400, 1e-2)
errors["ContractingGRU"] = error(gru, its_head)

figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
ax.barh(list(errors), list(errors.values()), color=["C7", "C3", "C0", "C2"])
ax.set(xscale="log", xlabel="share of the variance that is not explained")
ax.invert_yaxis()
plt.show()
for name, value in errors.items():
    print(f"{name:24} {value:.4f}")

assert certificate.rate <= RATE
assert errors["scaled and trained"] < errors["scaled"]
assert errors["scaled and trained"] < 0.2
assert errors["ContractingGRU"] < 0.2

# %%
# What the proof says
# -------------------
# Two runs read the same inputs, from different starts with :math:`|h_i| ≤ 1` and :math:`|c_i| ≤ κ_i`. Their
# difference δ, of h and c together, shrinks by the rate in each step, in the norm :math:`\max_i |δ_i|/d_i`.
# Both κ and d come with the certificate. Adam looks for starts and inputs that keep the runs apart.

lstm = lstm.double()
certificate = sp.analysis.contraction(lstm, input_bound=BOUND)
d, starts = certificate.scaling, certificate.starts


def distances(inputs, h, c):
    """Return the distance of two runs at all times."""
    state, found = (starts[0] * torch.tanh(h), starts[1] * torch.tanh(c)), []
    for x in [None, *inputs]:
        if x is not None:
            state = lstm(BOUND * torch.tanh(x).expand(1, 2, 1), tuple(part[None] for part in state))[1]
            state = tuple(part[0] for part in state)
        found.append(
            torch.stack([((s[0] - s[1]) / u[0]).abs().max() for s, u in zip(state, d, strict=True)]).max()
        )
    return torch.stack(found)


inputs, h, c = torch.randn(30, dtype=torch.float64), *torch.randn(2, 2, UNITS, dtype=torch.float64)
optimizer = torch.optim.Adam([t.requires_grad_() for t in (inputs, h, c)], lr=5e-2)
for _ in range(60):
    apart = distances(inputs, h, c)
    optimizer.zero_grad()
    (-(apart[-1] / apart[0]).log()).backward()
    optimizer.step()
apart = (distances(inputs, h, c) / distances(inputs, h, c)[0]).detach().numpy()

envelope = certificate.rate ** np.arange(31)
figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
ax.fill_between(
    np.arange(31), 1e-6, envelope, alpha=0.15, label=f"proven: {certificate.rate:.2f} to the power of time"
)
ax.plot(apart, label="the scaled LSTM under attack")
ax.set(yscale="log", xlabel="steps", ylabel="distance of two runs", ylim=(1e-3, None))
ax.legend(fontsize="small")
plt.show()

assert (apart <= envelope * (1 + 1e-9)).all()

# %%
# The price is in the recurrent weights: they are a small fraction of what they were, and what the network
# remembers goes through its cell state. A task that computes with its states loses more:
# :doc:`/costs` has three tasks.
