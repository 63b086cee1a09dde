r"""
Radius, norm, transient growth: three different numbers
=======================================================

What each bound says about one step, many steps, and those in between.

How large does :math:`W^k h` become? Three numbers answer this question, each for another :math:`k`:

- the **spectral radius** :math:`\rho(W)`, the largest modulus of an eigenvalue, for :math:`k \to \infty`;
- the **spectral norm** :math:`\|W\|_2`, the largest singular value, for :math:`k = 1`;
- the **transient growth** :math:`\max_k \|W^k\|_2` for the worst :math:`k` in between.

For a normal matrix, a rotation for instance, the first two are equal, and nothing grows if they are at most
1. This tutorial draws what happens when a matrix is not normal, shows which constraint of this library
bounds which number, and ends with a ReLU network that has a spectral radius of 0.5 and never forgets.
"""

# sphinx_gallery_thumbnail_path = 'thumbnails/plot_7_radius_norm_growth.png'
import matplotlib.pyplot as plt
import numpy as np
import torch

import spectral_param as sp

torch.manual_seed(0)

# %%
# Three matrices of the same radius
# ---------------------------------
#
# The first is a rotation, times 0.9. The second is the same rotation in stretched coordinates, so it has the
# same eigenvalues. The third has two real eigenvalues, 0.9 and 0.8, whose eigenvectors are nearly parallel.

angle = torch.tensor(0.6, dtype=torch.float64)
cos, sin = 0.9 * angle.cos(), 0.9 * angle.sin()
matrices = {
    "rotation": torch.tensor([[cos, -sin], [sin, cos]]),
    "stretched rotation": torch.tensor([[cos, -8 * sin], [sin / 8, cos]]),
    "shear": torch.tensor([[0.9, 4.0], [0.0, 0.8]], dtype=torch.float64),
}
colors = {"rotation": "#009E73", "stretched rotation": "#0072B2", "shear": "#D55E00"}

print(f"{'':20}{'radius':>8}{'norm':>8}{'growth':>8}")
numbers = {}
for name, W in matrices.items():
    growth = sp.analysis.transient_growth(W, steps=60)
    radius, norm = sp.functional.spectral_radius(W), torch.linalg.matrix_norm(W, 2)
    numbers[name] = (radius.item(), norm.item(), growth.peak.item())
    print(f"{name:20}{radius:8.2f}{norm:8.2f}{growth.peak:8.2f}")

# %%
# All three have the radius 0.9. The last two have almost the same norm as well, yet one grows to 6 times its
# start and the other to almost 11 times. So two of the numbers do not determine the third.

assert all(abs(radius - 0.9) < 1e-12 for radius, _, _ in numbers.values())
assert abs(numbers["shear"][1] - numbers["stretched rotation"][1]) < 0.05
assert numbers["shear"][2] > 1.5 * numbers["stretched rotation"][2]

# %%
# The pictures show :math:`h, Wh, W^2h, \dots` from twelve starts on the unit circle (grey). Each orbit ends
# at zero, as the radius says. What happens before depends on the matrix: mind the scales of the horizontal
# axes.

fig, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
turn = torch.arange(12, dtype=torch.float64) * torch.pi / 6
for ax, (name, W) in zip(axes, matrices.items(), strict=True):
    orbit = [torch.stack([turn.cos(), turn.sin()])]  # (2, starts)
    for _ in range(40):
        orbit.append(W @ orbit[-1])
    x, y = torch.stack(orbit).unbind(dim=1)  # (steps, starts) each
    ax.add_patch(plt.Circle((0, 0), 1, color="0.8", zorder=0))
    ax.plot(x, y, ".-", color=colors[name], linewidth=0.6, markersize=3)
    ax.set(title=f"Orbits of the {name}", aspect="equal" if name == "rotation" else "auto")
plt.show()

# %%
# Growth of the powers
# --------------------
#
# :func:`~spectral_param.analysis.transient_growth` computes the norms of the powers.
# :func:`~spectral_param.analysis.kreiss_constant` (dashed) is a lower bound on the largest of them that needs
# no powers: it looks at the resolvent :math:`(zI - W)^{-1}` outside the unit disc.

fig, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
for name, W in matrices.items():
    growth, kreiss = sp.analysis.transient_growth(W, steps=60), sp.analysis.kreiss_constant(W)
    sp.analysis.plot_transient_growth(growth, ax, kreiss, label=name, color=colors[name])
    assert kreiss <= growth.peak + 1e-9
ax.set(title="Norms of the powers of three matrices with the radius 0.9", yscale="log")
ax.legend()
plt.show()

# %%
# Pseudospectra: eigenvalues of the neighbours
# --------------------------------------------
#
# Colour each point :math:`z` of the plane by :math:`\varepsilon = \sigma_{\min}(zI - W)`: the distance from
# :math:`W` to the nearest matrix that has the eigenvalue :math:`z`. Around the eigenvalues of a normal matrix
# these regions are discs of radius :math:`\varepsilon`. For the shear, a change of 0.01 moves an eigenvalue
# out of the unit disc, although both eigenvalues are well inside. The white lines are :math:`\varepsilon =
# 0.01` and :math:`\varepsilon = 0.1`.

fig, axes = plt.subplots(1, 3, figsize=(10.5, 3.4), sharey=True, layout="constrained")
x, y = np.meshgrid(np.linspace(-1.6, 1.9, 141), np.linspace(-1.6, 1.6, 129))
z = torch.from_numpy(x + 1j * y)
for ax, (name, W) in zip(axes, matrices.items(), strict=True):
    distance = torch.linalg.svdvals(z[..., None, None] * torch.eye(2) - W)[..., -1]
    filled = ax.contourf(x, y, distance.log10().clamp(min=-3), np.linspace(-3, 0.5, 15), cmap="magma")
    ax.contour(x, y, distance, [0.01, 0.1], colors="white", linewidths=0.8)
    sp.analysis.plot_eigenvalues(sp.analysis.eigenvalues(W), ax, color="cyan")
    ax.set(title=name, ylabel="")
fig.suptitle("Pseudospectra of three matrices with the radius 0.9")
fig.colorbar(filled, ax=axes, label=r"$\log_{10}\ \sigma_{\min}(zI - W)$", ticks=[-3, -2, -1, 0])
plt.show()

outside = z.abs() > 1.0
assert distance[outside].min() < 0.01  # of the shear, the last one drawn

# %%
# Which constraint bounds which number?
# -------------------------------------
#
# ``SpectralRadiusNorm`` and ``SchurForm(radius=...)`` bound the radius. Neither bounds the norm: the triangle
# :math:`T` of the Schur form, :math:`W = P(\Lambda + T)P^T`, is free. Its size :math:`\|T\|_F` is the
# *departure from normality*, and ``SchurForm(radius=..., departure=...)`` bounds it, too.
#
# .. list-table::
#    :header-rows: 1
#
#    * - number
#      - what it decides
#      - constraints that bound it
#    * - radius
#      - whether linear dynamics die out
#      - :class:`~spectral_param.SpectralRadiusNorm`, :class:`~spectral_param.SchurForm`,
#        :class:`~spectral_param.LyapunovForm`
#    * - norm
#      - what one step can do, with ReLU and tanh, too
#      - :class:`~spectral_param.SpectralNorm`, :class:`~spectral_param.SingularValues`; orthogonal ones, for
#        instance :class:`~spectral_param.ScaledCayley`
#    * - growth
#      - what the worst number of steps can do
#      - those that bound the norm by 1; :class:`~spectral_param.LyapunovForm` with ``growth``;
#        :class:`~spectral_param.SchurForm` with ``radius`` and ``departure``
#
# Let an optimizer look for growth: it maximises :math:`\|W^8\|_2` of an 8x8 matrix with the radius at most
# 0.9, once for each bound on the departure.


def maximize_growth(constraint, steps=100):
    """Return the norms of W to the power of 8 over training, and W at the end."""
    layer = torch.nn.Linear(8, 8, bias=False, dtype=torch.float64)
    sp.constrain(layer, "weight", constraint, init=torch.nn.init.orthogonal_)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    norms = []
    for _ in range(steps):
        norm = torch.linalg.matrix_norm(torch.linalg.matrix_power(layer.weight, 8), 2)
        norms.append(norm.item())
        optimizer.zero_grad()
        (-norm.log()).backward()
        optimizer.step()
    return norms, layer.weight.detach()


fig, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
reached = {}
for bound, color in {None: "#D55E00", 1.0: "#0072B2", 0.3: "#009E73"}.items():
    norms, W = maximize_growth(sp.SchurForm(radius=0.9, departure=bound))
    reached[bound] = norms[-1]
    ax.plot(norms, color=color, label=f"departure={bound}")
    departure, radius = sp.analysis.departure_from_normality(W), sp.functional.spectral_radius(W)
    print(f"departure={bound}: radius {radius:.3f}, departure {departure:.3f}, norm of W⁸ {norms[-1]:.1f}")
    assert radius < 0.9 + 1e-4
    assert bound is None or departure <= bound
ax.set(title="Largest growth that an optimizer finds within radius 0.9", yscale="log")
ax.set(xlabel="optimizer step", ylabel=r"$\|W^8\|_2$")
ax.legend()
plt.show()

assert reached[None] > 10 * reached[1.0] > 20 * reached[0.3]

# %%
# A ReLU network that does not forget
# -----------------------------------
#
# An activation changes the map. Where unit 1 is active and unit 2 is not, a ReLU network sees only the entry
# :math:`W_{11}`, and a submatrix can have a larger spectral radius than the matrix. Here it is 1 instead of
# 0.5:

W = torch.tensor([[1.0, 1.5], [-0.5, -0.5]], dtype=torch.float64)
print(f"radius of W: {sp.functional.spectral_radius(W):.2f}, of its first entry: {W[0, 0]:.2f}")


def norms_of_states(W, activation, steps=20):
    """Return the norms of the states from the start (1, 0)."""
    states = [torch.tensor([1.0, 0.0], dtype=torch.float64)]
    for _ in range(steps):
        states.append(activation(W @ states[-1]))
    return torch.stack(states).norm(dim=1)


def identity(x):
    """Return x."""
    return x


# %%
# The linear network forgets its start. The same network with ReLU keeps it for ever, and with 1.2 W, of
# radius 0.6, it explodes. An orthogonal matrix, here from :class:`~spectral_param.ScaledCayley`, has the norm
# 1, and ReLU makes no norm larger: such a network cannot explode.

layer = sp.constrain(torch.nn.Linear(2, 2, bias=False, dtype=torch.float64), "weight", sp.ScaledCayley())
curves = {
    "W, linear": norms_of_states(W, identity),
    "W, ReLU": norms_of_states(W, torch.relu),
    "1.2 W, ReLU": norms_of_states(1.2 * W, torch.relu),
    "orthogonal, ReLU": norms_of_states(layer.weight.detach(), torch.relu),
}
fig, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
for (name, norms), style in zip(curves.items(), ("-", "-", "-", "--"), strict=True):
    ax.plot(norms.clamp(min=1e-6), style, marker=".", label=name)
ax.set(title="States of a linear and of ReLU networks", xlabel="k", ylabel=r"$\|h_k\|_2$", yscale="log")
ax.legend()
plt.show()

assert curves["W, linear"][-1] < 1e-4
assert torch.all(curves["W, ReLU"] == 1)
assert curves["1.2 W, ReLU"][-1] > 30
assert torch.all(curves["orthogonal, ReLU"].diff() <= 1e-12)

# %%
# What to try next
# ----------------
#
# - Look at your own recurrent weight: ``sp.analysis.transient_growth(rnn.weight_hh_l0, steps=200).peak``.
# - Long memory and no growth: orthogonal matrices, see :doc:`plot_1_why_networks_forget`.
# - Growth on purpose: a non-normal matrix keeps a signal for as many steps as it has units and then forgets
#   it. :doc:`/analysis` draws its memory curve; :class:`spectral_param.nn.NNRNN` trains it.
# - :doc:`/choosing` compares what each constraint bounds and what it costs.
