"""Functions of tensors, with their gradients, and initialisations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import spectral_param as sp
from tests.promises.jobs.tensors import HOST, Job, To, gradients, normal, rotation, stable


def derived(function: Callable[..., Any], *tensors: Tensor) -> Job:
    """A job: the function's value, and its gradients."""

    def job(to: To) -> Any:
        leaves = [to(t).clone().requires_grad_(t.is_floating_point() or t.is_complex()) for t in tensors]
        result = function(*leaves)
        grown = result if isinstance(result, tuple) else (result,)
        differentiable = tuple(t for t in grown if t is not None and t.requires_grad)
        wanted = [t for t in leaves if t.requires_grad]
        return result, gradients(differentiable, *wanted) if differentiable else ()

    return job


def _functions() -> dict[str, Job]:
    f, W, tall = sp.functional, stable(6), normal(6, 3)
    skew = normal(6, 6) - normal(6, 6).mT
    gamma, theta, shear = normal(6, seed=2), normal(6, seed=3), 0.1 * normal(6, seed=4)
    pairs = torch.tensor([True, False, False, True, False, False], device="cpu")
    h, signs = normal(4, 6, seed=5), torch.ones(6, **HOST)
    x, h0, U = normal(30, 3, 2), normal(3, 6, seed=1), normal(6, 2, seed=2)
    v, phases = normal(2, 6, dtype=torch.complex64), normal(3, 6)
    order = torch.tensor([2, 0, 1, 5, 3, 4], dtype=torch.int64, device="cpu")
    return {
        "cayley": derived(f.cayley, skew),
        "cayley_inverse": derived(f.cayley_inverse, rotation(6)),
        "delta_product": derived(
            lambda q, k, v, b, a, s: f.delta_product(q, k, v, b.sigmoid(), decay=a.sigmoid(), state=s),
            normal(3, 20, 4),
            normal(3, 40, 4, seed=1),
            normal(3, 40, 5, seed=2),
            normal(3, 40, seed=3),
            normal(3, 20, seed=4),
            normal(3, 4, 5, seed=5),
        ),
        "dominant_eigen": derived(lambda T: f.dominant_eigen(T).eigenvalue, W),
        "exponential": derived(f.exponential, skew),
        "exponential, large": derived(f.exponential, 1e4 * skew),
        "fourier_operator": derived(
            lambda v, p, o, h: f.fourier_operator(v, p, o)(h), v, phases, order, h + 0j
        ),
        "givens_operator": derived(lambda t, d, h: f.givens_operator(t, None, d)(h), normal(15), signs, h),
        "goru": derived(f.goru, x, h0, normal(18, 2), normal(12, 6), rotation(6)),
        "householder": derived(f.householder, tall),
        "householder_apply": derived(lambda V, h: f.householder_apply(h, *f.householder_factors(V)), tall, h),
        "householder_factors": derived(f.householder_factors, tall),
        "modrelu": derived(f.modrelu, normal(4, 6, dtype=torch.complex64), normal(6)),
        "rnn": derived(lambda *a: f.rnn(*a, nonlinearity="relu"), x, h0, U, rotation(6), normal(6)),
        "rnn, identity": derived(lambda *a: f.rnn(*a, nonlinearity="identity"), x, h0, U, W, normal(6)),
        "rnn, long": derived(
            lambda *a: f.rnn(*a, nonlinearity="identity"), normal(600, 1, 2), normal(1, 6), U, W
        ),
        "rnn, lengths": derived(
            lambda *a: f.rnn(*a, nonlinearity="tanh", batch_sizes=[3, 3, 2, 1]), normal(9, 2), h0, U, W
        ),
        "scaled_cayley": derived(f.scaled_cayley, skew, signs),
        "scaled_cayley, ill-conditioned": derived(f.scaled_cayley, 1e5 * skew, signs),
        "scaled_cayley, large": derived(
            f.scaled_cayley, 0.1 * (normal(200, 200) - normal(200, 200).mT), torch.ones(200, **HOST)
        ),
        "scaled_norm": lambda to: f.scaled_norm(to(W)),
        "schur_form": derived(
            lambda P, T, g, t, s, p: f.schur_form(P, T, g, t, s, p),
            rotation(6),
            W,
            gamma,
            theta,
            shear,
            pairs,
        ),
        "doubly_stochastic": derived(f.doubly_stochastic, W),
        "spectral_abscissa": derived(f.spectral_abscissa, W),
        "spectral_radius": derived(f.spectral_radius, W),
        "spectral_radius, large": derived(f.spectral_radius, stable(130)),
        "spectral_radius, batch": derived(f.spectral_radius, torch.stack([W, 2 * W, W.mT])),
    }


def _lstm(to: To) -> torch.nn.Module:
    torch.manual_seed(0)
    return to(torch.nn.LSTM(2, 4, dtype=torch.float32, device="cpu"))


def _inits() -> dict[str, Job]:
    mask = torch.ones(6, 6, dtype=torch.bool, device="cpu")
    drawn: dict[str, Callable[..., Tensor]] = {
        "cayley_": sp.init.cayley_,
        "disc_": sp.init.disc_,
        "henaff_": sp.init.henaff_,
        "spectral_radius_": lambda W, **o: sp.init.spectral_radius_(W, 0.9, mask=mask, **o),
    }

    def job(fill: Callable[..., Tensor], to: To) -> Any:
        return fill(to(torch.empty(6, 6, **HOST)), generator=torch.Generator().manual_seed(0))

    return {
        **{name: functools.partial(job, fill) for name, fill in drawn.items()},
        "echo_state_": lambda to: sp.init.echo_state_(to(stable(6)), 0.9),
        "contracting_": lambda to: sp.init.contracting_(_lstm(to), 0.9, 1.0)[:2],
    }


FUNCTIONS: dict[str, Job] = {
    **{f"functional: {name}": job for name, job in _functions().items()},
    **{f"init: {name}": job for name, job in _inits().items()},
}
