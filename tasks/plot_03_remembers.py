"""A network that remembers
========================

The first of 200 steps says the answer; an orthogonal recurrent matrix keeps it, and its gradient.

Goes on in :doc:`/rnn`; :doc:`/tutorials/plot_1_why_networks_forget` compares gradients.
"""

import matplotlib.pyplot as plt
import torch

import spectral_param as sp

plt.figure(figsize=(4.4, 3.4), layout="constrained")
for layer in (torch.nn.LSTM, sp.nn.ScoRNN):
    torch.manual_seed(0)
    rnn, head = layer(2, 32), torch.nn.Linear(32, 1)
    optimizer = torch.optim.Adam(sp.param_groups(torch.nn.ModuleList([rnn, head]), lr=5e-3))
    losses = []
    for _ in range(200):
        x = 0.1 * torch.randn(200, 32, 2)
        x[1:, :, 0] = 0  # The first channel speaks once, the second one is noise.
        x[0, :, 0] = torch.randint(2, (32,)) * 2.0 - 1
        answers = head(rnn(x)[0][-1])[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(answers, (x[0, :, 0] > 0).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"{layer.__name__}: loss {sum(losses[-20:]) / 20:.3f}; guessing has 0.693")
    plt.semilogy(losses, label=layer.__name__)
plt.gca().set(xlabel="training step", ylabel="loss")
plt.legend()
plt.show()
