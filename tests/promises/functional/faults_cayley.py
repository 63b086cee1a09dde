"""Faults that test_cayley.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "written: an input that is written to before the backward pass is taken as it is then",
        "spectral_param/_map.py",
        "inputs = ctx.saved_tensors if ctx.kept is None else ctx.kept",
        "inputs = ctx.kept or ()",
        "written_to",
    ),
    Fault(
        "lost-term: the gradient of Cayley's diagonal lacks what is off its diagonal",
        "spectral_param/functional/_cayley.py",
        ".conj() * G).sum(dim=-2)",
        ".conj() * G).diagonal(dim1=-2, dim2=-1)",
        "derivatives",
    ),
    Fault(
        "condition: large originals take the inverse of small ones",
        "spectral_param/functional/_cayley.py",
        "if float(torch.linalg.vector_norm(plus)) <= limit or _is_tame(plus, Z, limit):",
        "if True:",
        "size or huge",
    ),
)
