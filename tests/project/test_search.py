"""The search of the built documentation finds the right page first for the words that people type.

``make docs`` runs this; without built pages it is skipped.
"""

import json
import math
import re
from pathlib import Path

import pytest

INDEX = Path(__file__).parents[2] / "docs/_build/html/searchindex.js"

WORDS = {
    "shapes": ("rectangular", "non-square", "nonsquare", "orthonormal columns", "convolution", "autoencoder"),
    "bounds": ("Lipschitz", "spectral norm", "DEQ", "fixed point", "guarantees", "transient growth"),
    "deploy": ("ONNX", "export", "deploy", "torchscript", "inference", "torch.export"),
    "transformers": ("LoRA", "transformer", "attention", "adapter", "feed-forward", "adapters"),
    "trained": ("pretrained", "fine-tuning", "trained network"),
    "dynamics": ("forecast", "DMD", "Koopman", "system identification"),
    "choosing": ("LSTM", "GRU", "orthogonal", "spectral radius", "which one"),
    "stable": ("stable weight", "Lyapunov"),
    "reservoirs": ("reservoir", "echo state network", "leaky units"),
    "quickstart": ("weight decay", "checkpoint", "Lightning", "torch.compile", "autocast"),
    "processes": ("DDP", "FSDP"),
    "rnn": ("vanishing gradients", "RNN"),
    "costs": ("costs", "benchmark"),
    "costs_gpu": ("GPU", "CUDA"),
    "costs_networks": ("RNN speed", "memory"),
    "costs_orthogonal": ("orthogonal speed",),
    "costs_norms": ("convolution speed",),
}


@pytest.fixture(scope="module")
def index():
    if not INDEX.exists():
        pytest.skip("The documentation is not built: make docs.")
    text = INDEX.read_text()
    return json.loads(text[len("Search.setIndex(") : text.rindex(")")])


def ranked(index, query):
    """Return pages by score, best first, as Sphinx's searchtools.js ranks titles, index entries and objects.

    The words of the text score at most 15, below every index entry that is typed whole (100), so they are
    left out.
    """
    query = query.lower().strip()
    found = {}

    def add(page, score):
        found[page] = max(score, found.get(page, 0))

    for title, places in index["alltitles"].items():
        if query in title.lower().strip() and len(query) >= len(title) / 2:
            for page, _ in places:
                boost = index["titles"][page] == title
                add(page, math.floor(15 * len(query) / len(title) + 0.5) + boost)
    for entry, places in index["indexentries"].items():
        if query in entry and len(query) >= len(entry) / 2:
            for page, _, is_main in places:
                if is_main:
                    add(page, math.floor(100 * len(query) / len(entry) + 0.5))
    words = set(re.split(r"\W+", query)) - {""}
    for prefix, objects in index["objects"].items():
        for page, kind, priority, _, name in objects:
            full = f"{prefix}.{name}".lower()
            last = full.split(".")[-1]
            about = f"{prefix} {name} {index['objnames'][str(kind)][2]} {index['titles'][page]}".lower()
            for word in words:
                if word in full and all(other in about for other in words):
                    match = 11 if word in (full, last) else 6 if word in last else 0
                    add(page, match + {0: 15, 1: 5, 2: -5}[priority])
    names = [index["docnames"][page] for page in sorted(found, key=lambda page: -found[page])]
    scores = sorted(found.values(), reverse=True)
    return names, scores


@pytest.mark.parametrize(("page", "query"), [(page, word) for page, words in WORDS.items() for word in words])
def test_the_right_page_comes_first(index, page, query):
    names, scores = ranked(index, query)
    assert names, f"expected {page} for {query!r}, found nothing"
    assert names[0] == page, f"expected {page} for {query!r}, found {names[:4]}"
    assert scores[0] > 15, f"{query!r}: expected an index entry, got a score that words of a text can have"
    assert len(scores) == 1 or scores[0] > scores[1], f"{query!r}: {names[:2]} have the same score"
