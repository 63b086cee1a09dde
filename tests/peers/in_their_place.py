"""A plugin of pytest that puts constraints of this library in the place of those of a peer.

So the peer's own tests, from a checkout of it, are run on ours::

    run="python -m pytest -p tests.peers.in_their_place -c /dev/null --import-mode=importlib"
    $run GEOTORCH/test/test_integration.py -k "so or test_orthogonal"
    $run ORTHOGONIUM/tests/test_ortho_linear.py
"""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

import spectral_param as sp


def put_into_geotorch() -> None:
    """SO and Stiefel, and the functions that register them."""
    import geotorch
    import geotorch.so
    import geotorch.stiefel

    def sampled(constraint: type[sp.Parametrization]) -> type[sp.Parametrization]:
        class Orthogonal(constraint):
            def sample(self, distribution: str = "uniform") -> Tensor:  # Before registration, too.
                return nn.init.orthogonal_(torch.empty(self.size))

        return Orthogonal

    ours = {"expm": sampled(sp.SkewExponential), "cayley": sampled(sp.ScaledCayley)}
    stiefel = geotorch.Stiefel

    def made(size, triv: str = "expm") -> nn.Module:
        if len(size) == 4 and size[-1] == 1:  # A kernel of a convolution for us, many vectors for geotorch.
            theirs = object.__new__(stiefel)
            theirs.__init__(size, triv=triv)
            return theirs
        constraint = ours[triv]()
        constraint.size = torch.Size(size)
        return constraint

    def orthogonal(module: nn.Module, name: str = "weight", triv: str = "expm") -> nn.Module:
        constraint, weight = made(getattr(module, name).shape, triv), getattr(module, name)
        weight.data = constraint.sample()
        register_parametrization(module, name, constraint)
        return module

    def chosen(kind: type) -> type:
        # A subclass, whose class methods geotorch calls by the name of the class.
        return type(kind.__name__, (kind,), {"__new__": lambda cls, *args, **kwargs: made(*args, **kwargs)})

    geotorch.so.SO = geotorch.SO = chosen(geotorch.SO)
    geotorch.stiefel.Stiefel = geotorch.Stiefel = chosen(geotorch.Stiefel)
    geotorch.orthogonal = orthogonal


def put_into_orthogonium() -> None:
    """The orthogonalizer of every set of parameters."""
    from orthogonium import reparametrizers

    ours = {
        "spectral_normalizer": reparametrizers.BatchedIdentity,
        "orthogonalizer": lambda weight_shape: sp.ScaledCayley(),
    }
    for given in vars(reparametrizers).values():
        if isinstance(given, reparametrizers.OrthoParams):
            for name, value in ours.items():
                object.__setattr__(given, name, value)
    names = [field.name for field in dataclasses.fields(reparametrizers.OrthoParams)]
    defaults = reparametrizers.OrthoParams.__init__.__defaults__
    assert len(defaults) == len(names)
    reparametrizers.OrthoParams.__init__.__defaults__ = tuple(
        ours.get(name, default) for name, default in zip(names, defaults, strict=True)
    )


for name, put_in in (("geotorch", put_into_geotorch), ("orthogonium", put_into_orthogonium)):
    if find_spec(name) is not None:
        put_in()
