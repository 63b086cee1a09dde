"""Modes of a structure
====================

Frequencies and dampings, with their deviations, from the accelerations of a structure that noise shakes.

Goes on in :doc:`/dynamics_modes`.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

import spectral_param as sp

rng = np.random.default_rng(0)
s = 2 * np.pi * np.array([3.0, 8.0]) * (-0.01 + 1j * np.sqrt(1 - 0.01**2))  # 3 Hz and 8 Hz, damped by 1 %.
state, shapes, rows = np.zeros(2, complex), rng.standard_normal((2, 3)), []
for force in rng.standard_normal((2000, 2)):  # Steps of 0.02 seconds, three sensors.
    state = np.exp(0.02 * s) * state + force
    rows.append((s**2 * state).real @ shapes)
rows = np.array(rows)
rows += 0.05 * rows.std(axis=0) * rng.standard_normal(rows.shape)

warnings.filterwarnings(
    "ignore", "StableLinearModel: a regression"
)  # Too few states miss a mode, as they should.
models = [sp.dynamics.StableLinearModel(states=n, dt=0.02).fit(rows) for n in range(2, 11)]
model = models[2]  # Four states, two for each mode: what stays at every larger order.
for i in np.argsort(model.frequencies_):
    if model.frequencies_[i] > 0:
        hertz, error = model.natural_frequencies_[i], model.natural_frequency_errors_[i]
        damping, other = 100 * model.damping_ratios_[i], 100 * model.damping_ratio_errors_[i]
        print(f"{hertz:.2f} ± {error:.2f} Hz, damped by {damping:.1f} ± {other:.1f} %")

figure, ax = plt.subplots(figsize=(5.6, 3), layout="constrained")
sp.analysis.plot_stabilisation(models, ax)
ax.set_xlabel("natural frequency, Hz")
plt.show()
