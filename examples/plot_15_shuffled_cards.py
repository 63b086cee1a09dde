r"""
Follow a shuffle
================

Where does each card lie, after all shuffles so far?

Nothing of a shuffle may be forgotten, and the order of the shuffles counts. A linear recurrence with one
matrix for all inputs cannot compute that, however well it remembers. A
:class:`spectral_param.nn.DeltaProduct` has a matrix for each input: a product of reflections.
"""

# sphinx_gallery_thumbnail_path = 'thumbnails/plot_15_shuffled_cards.png'
import itertools

import matplotlib.pyplot as plt
import torch
from torch import nn

import spectral_param as sp

torch.manual_seed(0)

# %%
# The task
# --------
# A network reads the numbers of shuffles, and says after each one which card lies where. Of three cards all
# six shuffles occur. Of five cards one is taken out and put in elsewhere, in 17 ways, from which all 120
# orders arise.

THREE = torch.tensor(list(itertools.permutations(range(3))))


def moves(cards):
    """Return all ways to take one card out and to put it in elsewhere, one in a row."""
    found = set()
    for taken, put in itertools.product(range(cards), repeat=2):
        order = [card for card in range(cards) if card != taken]
        found.add((*order[:put], taken, *order[put:]))
    return torch.tensor(sorted(found))


def decks(shuffles, length, count):
    """Return random shuffles ``(length, count)``, and the card at each place after each of them."""
    chosen = torch.randint(len(shuffles), (length, count))
    deck, found = torch.arange(shuffles.shape[1]).expand(count, -1), []
    for step in chosen:
        deck = deck.gather(1, shuffles[step])
        found.append(deck)
    return chosen, torch.stack(found)


# %%
# The networks
# ------------
# Each is an embedding, a recurrent layer of about equal size, and a linear map. With
# ``strength="reflection"`` and ``values=False`` a state is only turned, never written: it starts at trained
# numbers and keeps its length for ever. Then the number of reflections decides whether a shuffle turns space
# over, so an even number takes one dimension more than the cards need.


class Reader(nn.Module):
    """Reads shuffles, and returns logits ``(length, count, places, cards)``."""

    def __init__(self, layer, shuffles):
        super().__init__()
        self.cards = shuffles.shape[1]
        self.embedding, self.layer = nn.Embedding(len(shuffles), 32), layer
        width = layer.output_size if hasattr(layer, "output_size") else layer.hidden_size
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, self.cards**2))

    def forward(self, chosen):
        """Return the logits."""
        return self.head(self.layer(self.embedding(chosen))[0]).unflatten(-1, (self.cards, self.cards))


def turned(reflections):
    """Return a layer whose state is only turned."""
    return sp.nn.DeltaProduct(
        32, 24, num_heads=4, reflections=reflections, strength="reflection", values=False
    )


# %%
# Training
# --------
# Of long sequences nothing is learned as long as short ones are not. So they begin with four shuffles, and
# double, to at most 32, whenever nearly all is right. The learning rate falls to zero at the end.

LENGTHS = (16, 32, 64, 128, 256)


def train(layer, shuffles, steps):
    """Return the trained network."""
    network = Reader(layer, shuffles)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, 2 * (1 - step / steps)))
    length, right = 4, 0.0
    for _ in range(steps):
        chosen, deck = decks(shuffles, length, 32)
        logits = network(chosen)
        loss = nn.functional.cross_entropy(logits.flatten(0, 2), deck.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        right = 0.8 * right + 0.2 * (logits.argmax(-1) == deck).all(-1).float().mean().item()
        if right > 0.95 and length < 32:
            length, right = 2 * length, 0.0
    return network


@torch.no_grad()
def accuracy(network, shuffles):
    """Return the share of the decks that are right altogether, for each number of shuffles."""
    found = []
    for length in LENGTHS:
        chosen, deck = decks(shuffles, length, 64)
        found.append((network(chosen).argmax(-1) == deck).all(-1).float().mean().item())
    return found


three = {
    "LSTM": lambda: nn.LSTM(32, 32),
    "ScoRNN": lambda: sp.nn.ScoRNN(32, 32),
    "StateSpace": lambda: sp.nn.StateSpace(32, 32, 32),
    "one reflection": lambda: turned(1),
    "two reflections": lambda: turned(2),
}
results = {"three cards": {}, "five cards": {}}
for name, make in three.items():
    results["three cards"][name] = accuracy(train(make(), THREE, 200), THREE)
five = moves(5)
for name, make in (("LSTM", three["LSTM"]), ("four reflections", lambda: turned(4))):
    results["five cards"][name] = accuracy(train(make(), five, 300), five)

# %%
# How far it holds
# ----------------
# Two reflections follow three cards, and four follow five, far beyond the 32 shuffles of training (shaded).
# So does an LSTM with three cards, in as many steps, but not with five. One reflection cannot: the product of
# two shuffles would have to be one reflection, too.

figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
for ax, (title, found) in zip(axes, results.items(), strict=True):
    for name, values in found.items():
        ax.plot(LENGTHS, values, "o-", label=name)
        print(f"{title}, {name:16}", *(f"{value:.2f}" for value in values))
    ax.set(title=title, xscale="log", xlabel="shuffles", xticks=LENGTHS, xticklabels=LENGTHS)
    ax.minorticks_off()
    ax.axvspan(LENGTHS[0], 32, color="C7", alpha=0.15)
    ax.legend(fontsize="small")
axes[0].set_ylabel("decks that are right")
plt.show()

assert min(results["three cards"]["two reflections"]) > 0.9
assert min(results["five cards"]["four reflections"]) > 0.8
assert results["three cards"]["one reflection"][-1] < 0.5
assert results["three cards"]["ScoRNN"][-1] < 0.5

# %%
# What is proven
# --------------
# Two runs that read the same shuffles from different starts stay at one distance, for any parameters. That is
# not forgetting: for a network that forgets take :class:`spectral_param.nn.ContractingGRU`, or a ``rate``
# below 1.

network = train(turned(2), THREE, 20)
certificate = sp.analysis.contraction(network.layer)
features = network.embedding(decks(THREE, 1000, 1)[0])
first, second = torch.randn(2, 1, 1, 4, 6, 6)
apart = (network.layer(features, first)[1] - network.layer(features, second)[1]).norm().item()
print(f"proven rate {certificate.rate}, distance {(first - second).norm().item():.4f}, then {apart:.4f}")

assert certificate.rate == 1
