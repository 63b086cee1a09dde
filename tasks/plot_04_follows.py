"""A network that follows
======================

Which of three cards lies where, after all shuffles so far? Each step has a matrix of its own.

Goes on in :doc:`/rnn`; :doc:`/tutorials/plot_15_shuffled_cards` follows five cards, too.
"""

import matplotlib.pyplot as plt
import torch

import spectral_param as sp

orders = torch.tensor([[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]])  # Of three cards.


def play(length):
    """Return random shuffles and the order of the cards after each, as numbers ``(length, 32)``."""
    chosen, deck, found = torch.randint(6, (length, 32)), torch.arange(3).expand(32, 3), []
    for step in chosen:
        deck = deck.gather(1, orders[step])
        found.append((deck[:, None] == orders).all(dim=-1).int().argmax(dim=-1))
    return torch.nn.functional.one_hot(chosen, 6).float(), torch.stack(found)


torch.manual_seed(0)
rnn = sp.nn.DeltaProduct(6, 24, num_heads=4, reflections=2, strength="reflection", values=False)
head, lengths = torch.nn.Linear(24, 6), (16, 32, 64, 128, 256)
optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=1e-2)
for step in range(200):
    shuffles, decks = play(4 if step < 120 else 16)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(head(rnn(shuffles)[0]).flatten(0, 1), decks.flatten()).backward()
    optimizer.step()
right = [(head(rnn(x)[0]).argmax(-1) == decks).float().mean().item() for x, decks in map(play, lengths)]
print(", ".join(f"{length} shuffles: {share:.0%}" for length, share in zip(lengths, right, strict=True)))
plt.figure(figsize=(4.4, 3.4), layout="constrained")
plt.semilogx(lengths, right, "o-", base=2)
plt.gca().set(xlabel="shuffles; trained on up to 16", ylabel="right orders; guessing has 1/6", ylim=(0, 1.05))
plt.show()
