"""A forecast with bands
=====================

Four noisy sensors of two oscillations, a stable model of them, and how far to trust what it forecasts.

Goes on in :doc:`/dynamics`; :doc:`/tutorials/plot_3_forecast_from_noisy_snapshots` compares fits.
"""

import matplotlib.pyplot as plt
import numpy as np

import spectral_param as sp

rng = np.random.default_rng(0)
t = 0.3 * np.arange(400)
clean = np.stack([np.sin(w * t + p) for w in (0.7, 1.9) for p in (0.0, 1.0)], axis=1)
noisy = clean + 0.3 * rng.standard_normal(clean.shape)

model = sp.dynamics.StableLinearModel(noise="auto", lead=60).fit(noisy[:340])
forecast = model.forecast(60, coverage=0.9)
inside = (forecast.lower <= noisy[340:]) & (noisy[340:] <= forecast.upper)
error = np.linalg.norm(forecast.mean - clean[340:]) / np.linalg.norm(clean[340:])
print(f"noise in the {model.noise_}; spectral radius {model.fit_.reached:.3f}")
print(f"relative error over 60 steps {error:.2f}; {inside.mean():.0%} of later rows are in the band of 90 %")

plt.figure(figsize=(5.6, 3), layout="constrained")
plt.plot(t[260:], noisy[260:, 0], ".", color="0.5", label="measured")
plt.fill_between(t[340:], forecast.lower[:, 0], forecast.upper[:, 0], alpha=0.3, label="90 %")
plt.plot(t[340:], forecast.mean[:, 0], label="forecast")
plt.axvline(t[339], color="0.5", linewidth=0.8)
plt.xlabel("time")
plt.legend(loc="upper left", ncols=3, fontsize="small")
plt.ylim(-2, 3)
plt.show()
