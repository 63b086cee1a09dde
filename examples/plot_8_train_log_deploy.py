"""
Train with Lightning, log spectra, resume, deploy
=================================================

Spectra in TensorBoard's log, a resumed run of the same bits, a model that needs no library.

A constrained model trains in `Lightning <https://lightning.ai>`__ like any other model. This tutorial
classifies scikit-learn's digits, writes the spectral radius of the recurrent matrix into TensorBoard's log,
resumes from a checkpoint to the same bits, and exports a model that runs without this library.

The recurrent network is an ordinary :class:`torch.nn.RNN`. The spectral radius of its recurrent matrix is
constrained to be at most 1.
"""

# %%
# The model
# ---------
#
# The constraint is registered in ``__init__``. Lightning calls ``configure_optimizers`` later, so the
# optimizer gets the parameters that the constraint trains; and ``load_from_checkpoint`` builds the constraint
# before it loads.
#
# One line logs the spectra: :func:`spectral_param.analysis.spectral_summary` returns a dictionary with the
# spectral norm, the spectral radius and the departure from normality of each constrained weight, and
# ``self.log_dict`` takes it. Each call computes all eigenvalues, so the model logs once in an epoch.
# sphinx_gallery_thumbnail_path = 'thumbnails/plot_8_train_log_deploy.png'
import logging
import tempfile
import warnings
from pathlib import Path

import lightning
import matplotlib.pyplot as plt
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from sklearn.datasets import load_digits
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import spectral_param as sp


class Classifier(nn.Module):
    """Reads an image row by row, from top to bottom."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(input_size=8, hidden_size=64, batch_first=True)
        self.readout = nn.Linear(64, 10)
        sp.constrain(self.rnn, "weight_hh_l0", sp.SpectralRadiusNorm(mode="at_most"))

    def forward(self, images):
        """Return logits ``(batch, 10)`` for images ``(batch, 8, 8)``."""
        output, _ = self.rnn(images)
        return self.readout(output[:, -1])


class Training(lightning.LightningModule):
    """What Lightning needs to know."""

    def __init__(self):
        super().__init__()
        self.model = Classifier()

    def configure_optimizers(self):
        """Return Adam with a smaller learning rate for what the constraint trains."""
        return torch.optim.Adam(sp.param_groups(self.model, lr=3e-3, constrained_lr=1e-3))

    def training_step(self, batch):
        """Return the loss of a batch."""
        images, labels = batch
        return cross_entropy(self.model(images), labels)

    def validation_step(self, batch):
        """Log the accuracy."""
        images, labels = batch
        self.log("accuracy", (self.model(images).argmax(dim=-1) == labels).float().mean())

    def on_train_epoch_end(self):
        """Log the spectra."""
        self.log_dict(sp.analysis.spectral_summary(self.model))


# %%
# The data
# --------
#
# 1,797 images of 8 × 8 pixels, which come with scikit-learn. The batches have the same order in each epoch: a
# checkpoint of Lightning does not hold the state of the random number generator, so with ``shuffle=True`` a
# resumed run would see the images in another order than a run that was not interrupted.
digits = load_digits()
order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
images = torch.tensor(digits.images, dtype=torch.float32)[order] / 16
labels = torch.tensor(digits.target)[order]
training = DataLoader(TensorDataset(images[:1400], labels[:1400]), batch_size=50)
validation = DataLoader(TensorDataset(images[1400:], labels[1400:]), batch_size=397)

# %%
# Train and log
# -------------
#
# After twelve epochs the model recognises more than nine of ten test images.
for library in ("lightning.pytorch", "tensorboard"):  # Less to read on this page.
    logging.getLogger(library).setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")
warnings.filterwarnings("ignore", "The tensor attributes self.rnn._flat_weights")  # torch.export, of any RNN
directory = tempfile.TemporaryDirectory()  # deleted at the end
folder = Path(directory.name)


def trainer(epochs, name):
    """Return a trainer that writes ``folder/name``."""
    return lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=TensorBoardLogger(folder, name=name, version=""),
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )


lightning.seed_everything(0, verbose=False)
whole = Training()
start = sp.analysis.eigenvalues(whole.model.rnn.weight_hh_l0)
trainer(12, "whole").fit(whole, training, validation)
end = sp.analysis.eigenvalues(whole.model.rnn.weight_hh_l0)

log = EventAccumulator(str(folder / "whole")).Reload()
print(*log.Tags()["scalars"], sep="\n")

# %%
# ``tensorboard --logdir <folder>`` shows these curves in a browser. Here they are read back and drawn.
# Training raises the spectral radius to 1, which it cannot exceed. Nothing bounds the departure from
# normality, which goes on rising. :doc:`/tutorials/plot_7_radius_norm_growth` shows what a matrix
# of small spectral radius and large departure can do.
curves = {
    "accuracy": "accuracy",
    "spectral radius": "spectral_radius/rnn.weight_hh_l0",
    "departure from normality": "departure_from_normality/rnn.weight_hh_l0",
}
figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
for axis, (title, tag) in zip(axes, curves.items(), strict=True):
    values = [event.value for event in log.Scalars(tag)]
    axis.plot(range(1, len(values) + 1), values, marker="o")
    axis.set(title=title, xlabel="epoch")
axes[1].axhline(1, color="gray", linestyle=":")
plt.show()

accuracy, radius, departure = ([event.value for event in log.Scalars(tag)] for tag in curves.values())
print(f"accuracy {accuracy[-1]:.3f}, spectral radius {radius[0]:.3f} to {max(radius):.3f}")
assert accuracy[-1] > 0.9
assert radius[0] < 0.95 < 0.99 < max(radius) < 1.0001
assert departure[-1] > departure[0]

# %%
# The eigenvalues before and after the training:
angle = torch.linspace(0, 2 * torch.pi, 200)
figure, axis = plt.subplots(figsize=(4.5, 4.5), layout="constrained")
axis.plot(angle.cos(), angle.sin(), color="gray", linewidth=1)
axis.scatter(start.real, start.imag, s=16, label="before")
axis.scatter(end.real, end.imag, s=16, label="after")
axis.set(title="eigenvalues of the recurrent matrix", xlabel="real part", ylabel="imaginary part")
axis.set_aspect("equal")
figure.legend(loc="outside upper right")
plt.show()

# %%
# Stop and resume
# ---------------
#
# Six epochs, a checkpoint, and six more in a new model. The checkpoint also has what a constraint keeps
# besides its parameters. So the weights are those of the run above, to the last bit.
lightning.seed_everything(0, verbose=False)
first = trainer(6, "first half")
first.fit(Training(), training, validation)
first.save_checkpoint(folder / "half.ckpt")

resumed = Training()
trainer(12, "second half").fit(resumed, training, validation, ckpt_path=folder / "half.ckpt")
expected = whole.state_dict()
assert all(torch.equal(value, expected[name]) for name, value in resumed.state_dict().items())

# %%
# Deploy
# ------
#
# :func:`spectral_param.remove` leaves the constrained weight as an ordinary parameter. ``torch.export`` then
# writes a program that runs where this library is not installed. The program takes any number of images.
model = resumed.model.eval()
with torch.no_grad():
    before = model(images[1400:])
sp.remove(model)
program = torch.export.export(model, (images[:2],), dynamic_shapes={"images": {0: torch.export.Dim("batch")}})
torch.export.save(program, folder / "classifier.pt2")

loaded = torch.export.load(folder / "classifier.pt2").module()
with torch.no_grad():
    torch.testing.assert_close(loaded(images[1400:]), before)
assert not any("spectral_param" in str(node.target) for node in program.graph.nodes)
print(f"{(folder / 'classifier.pt2').stat().st_size / 1000:.0f} kB, no operator of spectral_param in it")

# %%
# Without Lightning
# -----------------
#
# In a training loop of your own, pass the same numbers to TensorBoard's writer:
#
# .. code-block:: python
#
#     from torch.utils.tensorboard import SummaryWriter
#
#     writer = SummaryWriter()
#     for name, value in sp.analysis.spectral_summary(model).items():
#         writer.add_scalar(name, value, epoch)
#
# `skorch <https://skorch.readthedocs.io>`__ gives a model the interface of scikit-learn. The ``Classifier``
# from above works as it is, and a callback logs:
#
# .. code-block:: python
#
#     from skorch import NeuralNetClassifier
#     from skorch.callbacks import EpochScoring
#
#     def radius(net, X, y):
#         return sp.analysis.spectral_summary(net.module_)["spectral_radius/rnn.weight_hh_l0"]
#
#     net = NeuralNetClassifier(
#         Classifier,
#         criterion=torch.nn.CrossEntropyLoss,
#         optimizer=torch.optim.Adam,
#         lr=3e-3,
#         callbacks=[EpochScoring(radius, name="radius", lower_is_better=None)],
#     )
#     net.fit(images.numpy(), labels.numpy())
#
# Save a skorch model with ``net.save_params(f_params="weights.pt")``. PyTorch does not pickle a parametrized
# ``torch.nn.RNN``, so ``pickle.dump(net, file)`` raises an error.
#
# What to try next
# ----------------
#
# - ``sp.SpectralRadiusNorm()`` without ``mode="at_most"``: the radius is 1 from the start.
# - ``sp.ScaledCayley()``: the matrix is orthogonal, and its departure from normality stays 0.
# - ``lightning.Trainer(devices=2)``: two processes, which hold the same constrained weight.
#   :doc:`/processes` says what they exchange.
# - Several layers, or an LSTM: ``sp.constrain(self.rnn, "weight_hh_l*", ...)``. The summary then has an entry
#   for each layer.
