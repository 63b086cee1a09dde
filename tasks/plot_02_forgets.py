"""A network that forgets
======================

Two runs that read the same inputs approach each other at a proven rate, whatever training does.

Goes on in :doc:`/gates`; :doc:`/tutorials/plot_11_provably_forgets` attacks such a network.
"""

import matplotlib.pyplot as plt
import torch

import spectral_param as sp

torch.manual_seed(0)
gru, head = sp.nn.ContractingGRU(1, 32, rate=0.9), torch.nn.Linear(32, 1)
optimizer = torch.optim.Adam([*gru.parameters(), *head.parameters()], lr=1e-2)
for _ in range(200):  # Smooth a noisy signal.
    signal = torch.sin(0.2 * torch.arange(60.0)[:, None, None] + 6.3 * torch.rand(32, 1))
    answers = head(gru(signal + 0.3 * torch.randn(60, 32, 1))[0])
    loss = (answers - signal).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"error after training {loss.item():.3f}, of the noise {0.3**2:.3f}")

certificate = sp.analysis.contraction(gru)
inputs, starts = 3 * torch.randn(80, 1, 1), 2 * torch.rand(1, 8, 32) - 1
states = gru(inputs.expand(-1, 8, -1), starts)[0].detach()
differences = (states[:, :1] - states[:, 1:]).abs() / certificate.scaling.float()
measured = differences.amax(dim=(1, 2))
first = ((starts[0, 0] - starts[0, 1:]).abs() / certificate.scaling.float()).max()
bound = first * certificate.rate ** torch.arange(1.0, 81.0)
print(f"proven rate {certificate.rate:.3f} for every input; kept: {bool((measured <= bound + 1e-6).all())}")

plt.figure(figsize=(4.4, 3.4), layout="constrained")
plt.semilogy(bound, "k--", label="proven")
plt.semilogy(measured, label="eight starts, measured")
plt.gca().set(xlabel="steps", ylabel="difference of two states")
plt.legend()
plt.show()
