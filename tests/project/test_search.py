"""The index of the built documentation has an entry for each word that people type, on the right page.

``make docs`` runs this; without built pages it is skipped.
"""

import json
from pathlib import Path

import pytest

INDEX = Path(__file__).parents[2] / "docs/_build/html/searchindex.js"

WORDS = {
    "shapes": ("rectangular", "non-square", "nonsquare", "orthonormal columns", "convolution", "autoencoder"),
    "bounds": ("guarantees", "bounds"),
    "lipschitz": ("Lipschitz", "certificate", "robustness"),
    "forgetting": ("forgetting", "contraction", "echo state property"),
    "gates": ("contracting GRU",),
    "fixed_points": ("DEQ", "fixed point"),
    "invertible": ("flow", "normalizing flow"),
    "powers": ("spectral norm", "transient growth", "numerical range"),
    "deploy": ("streaming", "ONNX", "export", "deploy", "torchscript", "inference", "torch.export"),
    "transformers": (
        "out_proj",
        "LoRA",
        "transformer",
        "attention",
        "adapter",
        "feed-forward",
        "adapters",
        "OFT",
    ),
    "trained": ("scale times orthogonal", "pretrained", "fine-tuning", "trained network"),
    "dynamics": ("forecast", "DMD", "Koopman", "system identification", "trend", "delay", "missing values"),
    "dynamics_modes": ("modes",),
    "after_step": ("after the step", "relative step", "retraction"),
    "choosing": ("LSTM", "GRU", "orthogonal", "spectral radius", "which one"),
    "stable": ("stable weight", "Lyapunov"),
    "reservoirs": ("reservoir", "echo state network", "leaky units"),
    "quickstart": ("weight decay", "checkpoint", "Lightning", "torch.compile", "autocast"),
    "processes": ("DDP", "FSDP"),
    "rnn": ("vanishing gradients", "RNN"),
    "following": ("state tracking", "permutation"),
    "sequences": ("chunked training", "truncated backpropagation"),
    "howto": ("Muon", "neural ODE", "max-norm", "Frobenius"),
    "guesses": ("weight norm",),
    "not_here": ("not here",),
    "costs": ("costs", "benchmark", "GPU", "CUDA"),
    "costs_weights": ("orthogonal speed", "convolution speed"),
    "costs_networks": ("RNN speed", "memory"),
}


@pytest.fixture(scope="module")
def index():
    if not INDEX.exists():
        pytest.skip("The documentation is not built: make docs.")
    text = INDEX.read_text()
    return json.loads(text[len("Search.setIndex(") : text.rindex(")")])


@pytest.mark.parametrize(("page", "query"), [(page, word) for page, words in WORDS.items() for word in words])
def test_each_word_has_one_main_entry_of_the_index(index, page, query):
    """The search ranks a main entry that is typed whole above titles, names and texts."""
    places = [
        place for entry, found in index["indexentries"].items() if entry == query.lower() for place in found
    ]
    assert [index["docnames"][place[0]] for place in places if place[2]] == [page]
