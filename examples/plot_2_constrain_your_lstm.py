"""
Constrain the LSTM that you have
================================

One line for a model that exists, from training to deployment.

You have a model with an LSTM. This tutorial constrains its recurrent weights without a change to the
model's code, trains it beside the unconstrained one, saves it, goes on with the training later, and takes the
constraint off for deployment. What remains is a plain ``torch.nn.LSTM``.
"""

# %%
# A model as people write it
# --------------------------
# The classifier reads scikit-learn's handwritten digits, 8 x 8 pixels, one pixel at a time. It has
# to remember over up to 64 steps. Nothing in the class knows of ``spectral_param``.

# sphinx_gallery_thumbnail_path = 'thumbnails/plot_2_constrain_your_lstm.png'
import io
import statistics
import time

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import spectral_param as sp


class Classifier(nn.Module):
    """Two layers of LSTM, and a linear map of the last output."""

    def __init__(self, hidden=32):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, 10)

    def forward(self, x):
        """Return logits (batch, 10) for pixels (batch, 64, 1)."""
        output, _ = self.lstm(x)
        return self.head(output[:, -1])


pixels, labels = load_digits(return_X_y=True)
x = torch.from_numpy(pixels).float()[..., None] / 16  # (1797, 64, 1): 64 steps, one number each
y = torch.from_numpy(labels)
x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.25, random_state=0)

# %%
# The one line
# ------------
# ``weight_hh_l*`` is a pattern of names: the recurrent weights of both layers. Each holds four square
# matrices, one for each gate, and :func:`spectral_param.constrain` constrains each of the four by itself.
# :class:`spectral_param.ScaledCayley` makes them orthogonal: all eigenvalues have modulus 1.


def constrained_classifier():
    """Return a classifier whose gates have orthogonal recurrent matrices."""
    model = Classifier()
    sp.constrain(model.lstm, "weight_hh_l*", sp.ScaledCayley())
    return model


def gates(model, layer=0):
    """Return the recurrent matrices of the four gates, (4, n, n)."""
    weight = getattr(model.lstm, f"weight_hh_l{layer}").detach()
    return weight.unflatten(0, (4, -1))


torch.manual_seed(0)
model = constrained_classifier()
print("parameters:", *(name for name, _ in model.lstm.named_parameters() if "hh" in name), sep="\n  ")
print("free parameters:", sp.num_free_parameters(Classifier()), "->", sp.num_free_parameters(model))

assert sp.analysis.orthogonality_error(gates(model)).max() < 1e-4

# %%
# The optimizer gets ``parametrizations.weight_hh_l0.original``, from which ``weight_hh_l0`` is computed. So
# the optimizer has to be made *after* the constraint.
#
# Train
# -----
# The training loop stays as it was. Only the learning rates may differ: the papers train an orthogonal
# matrix more slowly than the rest, and :func:`spectral_param.param_groups` makes the two groups for the
# optimizer. For a model without constraints it returns one group with all parameters.


def make_optimizer(model):
    """Return Adam with 1e-2, and 3e-3 for what a constraint trains."""
    return torch.optim.Adam(sp.param_groups(model, lr=1e-2, constrained_lr=3e-3))


def train_epoch(model, optimizer):
    """Train for an epoch in batches of 50, and return the accuracy on the test digits."""
    for batch in torch.randperm(len(y_train)).split(50):
        loss = nn.functional.cross_entropy(model(x_train[batch]), y_train[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return (model(x_test).argmax(dim=-1) == y_test).float().mean().item()


EPOCHS, SEEDS = 5, 3
builders = {"unconstrained": Classifier, "orthogonal gates": constrained_classifier}
accuracy = {name: torch.zeros(SEEDS, EPOCHS) for name in builders}
trained = {}
for name, build in builders.items():
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        model = build()
        optimizer = make_optimizer(model)
        for epoch in range(EPOCHS):
            accuracy[name][seed, epoch] = train_epoch(model, optimizer)
        trained[name] = model

colors = {"unconstrained": "C1", "orthogonal gates": "C0"}
figure, ax = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
for name, values in accuracy.items():
    epochs = range(1, EPOCHS + 1)
    ax.plot(epochs, values.mT, color=colors[name], alpha=0.3, linewidth=1)
    ax.plot(epochs, values.mean(dim=0), color=colors[name], marker="o", label=name)
ax.set(xlabel="epoch", ylabel="test accuracy", xticks=epochs)
ax.set_title("Digits read pixel by pixel: three seeds (thin) and their mean")
ax.legend(loc="lower right")
plt.show()

late = {name: values[:, 2:].mean().item() for name, values in accuracy.items()}
print({name: round(value, 3) for name, value in late.items()})

assert late["orthogonal gates"] > late["unconstrained"]

# %%
# In these first epochs the orthogonal gates learn faster on average. Five epochs are only the
# start of a training: they do not show which model is better in the end.
#
# What is certain is the constraint. The optimizer moved every entry, and each gate's eigenvalues are on the
# unit circle. Those of the unconstrained LSTM went where the loss took them.

titles = ("input gate", "forget gate", "cell gate", "output gate")
figure, axes = plt.subplots(1, 4, figsize=(12, 3.2), sharex=True, sharey=True, layout="constrained")
for name, color in colors.items():
    values = sp.analysis.eigenvalues(gates(trained[name]))
    for ax, points in zip(axes, values, strict=True):
        sp.analysis.plot_eigenvalues(points, ax, color=color, label=name, s=16)
for ax, title in zip(axes, titles, strict=True):
    ax.set_title(title)
    ax.label_outer()
figure.suptitle(
    "Eigenvalues of the trained recurrent matrices of the first layer's gates, and the unit circle"
)
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
plt.show()

assert sp.analysis.orthogonality_error(gates(trained["orthogonal gates"])).max() < 1e-4

# %%
# Save, load, resume
# ------------------
# A checkpoint is the ``state_dict`` of the model and of the optimizer, as always. To load it, build the
# model with the same constraint first. ``torch.save(model)`` does not work: PyTorch pickles no module with a
# parametrization.

model = trained["orthogonal gates"]  # the last one trained, so ``optimizer`` is its optimizer
file = io.BytesIO()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)

file.seek(0)
checkpoint = torch.load(file)
resumed = constrained_classifier()
resumed.load_state_dict(checkpoint["model"])
resumed_optimizer = make_optimizer(resumed)
resumed_optimizer.load_state_dict(checkpoint["optimizer"])

torch.manual_seed(1)
uninterrupted = train_epoch(model, optimizer)
torch.manual_seed(1)
after_loading = train_epoch(resumed, resumed_optimizer)
print(
    f"accuracy after one more epoch: {uninterrupted:.3f} without a break, {after_loading:.3f} after loading"
)

assert torch.allclose(model(x_test), resumed(x_test), atol=1e-3)

# %%
# For a checkpoint from *before* you had the constraint, the order is reversed: load it into the plain model,
# then call ``sp.constrain``. Training starts from the orthogonal matrix nearest to each loaded weight.
#
# What it costs
# -------------
# The orthogonal matrices are computed once per optimizer step, however long the sequence is. The plain and
# the constrained model take turns here, so that both are timed under the same conditions.


def step_time(model):
    """Return the seconds that a forward and a backward pass and an optimizer step take."""
    optimizer = make_optimizer(model)
    start = time.perf_counter()
    nn.functional.cross_entropy(model(x_train[:50]), y_train[:50]).backward()
    optimizer.step()
    return time.perf_counter() - start


pair = [Classifier(), constrained_classifier()]
times = [[step_time(model) for model in pair] for _ in range(21)]
plain, constrained = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
print(f"median training step: {plain:.1f} ms plain, {constrained:.1f} ms constrained")

# %%
# Take the constraint off
# -----------------------
# :func:`spectral_param.remove` leaves each weight as an ordinary parameter with its present value. The model
# needs no ``spectral_param`` any more, and ``torch.save``, ``torch.export`` and the rest see a plain LSTM.

before = model(x_test)
sp.remove(model)
print(type(model.lstm).__name__, *(name for name, _ in model.lstm.named_parameters() if "hh" in name))

assert type(model.lstm) is nn.LSTM
assert torch.allclose(model(x_test), before, atol=1e-5)

# %%
# What to try next
# ----------------
# - ``sp.SpectralRadiusNorm(0.95)`` in place of ``sp.ScaledCayley()`` sets the spectral radius of each gate
#   and leaves its singular values free. :doc:`Choosing a constraint </choosing>` compares all constraints,
#   and says what a radius means inside a gate.
# - The same line works for ``nn.GRU`` (three gates) and ``nn.RNN`` (one matrix); with ``"weight"``, for any
#   ``nn.Linear``.
# - Put a network with an orthogonal recurrence in the place of the LSTM: :doc:`plot_1_why_networks_forget`.
# - Log the spectra while training, with Lightning and TensorBoard: :doc:`plot_8_train_log_deploy`.
