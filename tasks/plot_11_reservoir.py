"""A reservoir
===========

Fixed random weights, scaled until they provably forget, and a linear readout that learns a chaotic series.

Goes on in :doc:`/reservoirs`; :doc:`/tutorials/plot_5_echo_state_network` predicts in closed loop.
"""

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse

import spectral_param as sp

rng = np.random.default_rng(0)
series = [1.2] * 18  # Mackey and Glass: it depends on what was 17 steps ago.
for _ in range(3000):
    series.append(0.9 * series[-1] + 0.2 * series[-18] / (1 + series[-18] ** 10))
series = np.array(series) - np.mean(series)

W = scipy.sparse.random_array((300, 300), density=0.05, rng=rng, data_sampler=rng.standard_normal)
W, certificate = sp.init.echo_state_(W, rate=0.95)
w_in, bias = rng.uniform(-1, 1, 300), rng.uniform(-0.5, 0.5, 300)
h, states = np.zeros(300), []
for x in series:
    h = np.tanh(W @ h + w_in * x + bias)
    states.append(np.append(h, 1.0))
states, ahead = np.array(states), 6
X, y = states[200:2000], series[200 + ahead : 2000 + ahead]
readout = np.linalg.solve(X.T @ X + 1e-6 * np.eye(301), X.T @ y)
forecast, still, truth = states[2000:-ahead] @ readout, series[2000:-ahead], series[2000 + ahead :]
error, other = (np.linalg.norm(rows - truth) / np.linalg.norm(truth) for rows in (forecast, still))
print(f"proven rate {certificate.rate:.2f} for every input; spectral radius {certificate.radius:.2f}")
print(f"forecast of {ahead} steps: relative error {error:.2f}; no change has {other:.2f}")
plt.figure(figsize=(5.6, 3), layout="constrained")
plt.plot(truth[:200], color="0.7", linewidth=4, label="what happens")
plt.plot(forecast[:200], label=f"forecast of {ahead} steps")
plt.legend(ncols=2, fontsize="small")
plt.show()
