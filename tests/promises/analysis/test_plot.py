"""Every plotting function draws on the axes it is given and returns them."""

import builtins
import math

import matplotlib as mpl
import pytest
import torch

mpl.use("Agg")

import matplotlib.pyplot as plt

import spectral_param as sp
from spectral_param import analysis


def recorder():
    result = analysis.Recorder(lambda: torch.rand(2))
    for step in range(4):
        result.record(step)
    return result


def norms():
    return analysis.gradient_norms(sp.nn.ENRNN(2, 3, 2), torch.randn(8, 2, 2))[1]


def modes():
    rows = torch.linspace(0, 20, 60).outer(torch.tensor([1.0, 2.0])).sin()
    return sp.dynamics.StableLinearModel(delays=2, dt=0.1).fit(rows.double())


def chosen():
    t = torch.linspace(0, 20, 60, dtype=torch.float64)
    rows = torch.stack([t.sin(), t.cos()], dim=1) + 0.1 * (45 * t[:, None]).cos()
    return sp.dynamics.StableLinearModel(noise="auto", lead=10).fit(rows).choice_


W = 0.9 * torch.eye(4) + torch.diag(torch.ones(3), -1)
CHAIN = torch.diag(torch.ones(3), -1)
V = torch.eye(4)[0]
CASES = {
    "plot_eigenvalues": lambda: (analysis.eigenvalues(W),),
    "plot_singular_values": lambda: (analysis.singular_values(W),),
    "plot_recording": lambda: (recorder(),),
    "plot_gradient_norms": lambda: (norms(),),
    "plot_gradient_norm_bounds": lambda: (norms(), analysis.gradient_norm_bounds(W, 7)),
    "plot_loss_gradient_norms": lambda: (
        analysis.loss_gradient_norms(torch.nn.LSTM(2, 3), torch.randn(8, 2, 2), torch.sum),
    ),
    "plot_fisher_memory": lambda: (analysis.fisher_memory(CHAIN, V, steps=6),),
    "plot_schur_form": lambda: (CHAIN,),
    "plot_subdiagonals": lambda: (analysis.subdiagonal_magnitudes(W),),
    "plot_angles": lambda: (analysis.eigenvalues(W),),
    "plot_transient_growth": lambda: (analysis.transient_growth(W, 20),),
}
CASES["plot_modes"] = lambda: (modes(),)
CASES["plot_choice"] = lambda: (chosen(),)
CASES["plot_stabilisation"] = lambda: ([modes()],)
# What each of them leaves on the axes: lines, collections of points, images or bars.
ARTISTS = ("lines", "collections", "images", "patches")


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.mark.parametrize(
    "name",
    sorted(
        CASES.keys()
        - {"plot_schur_form", "plot_gradient_norm_bounds", "plot_modes", "plot_choice", "plot_stabilisation"}
    ),
)
def test_a_weight_in_place_of_the_result_is_refused(name) -> None:
    with pytest.raises(ValueError, match=r"expected what analysis\..*\) returns, got .* of shape \(4, 4\)"):
        getattr(analysis, name)(-W)


def test_every_plot_has_a_case_here() -> None:
    assert set(CASES) == {name for name in analysis.__all__ if name.startswith("plot_")}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.turns(3)
def test_draws_on_the_given_axes(name) -> None:
    figure, (first, second) = plt.subplots(1, 2)
    assert getattr(analysis, name)(*CASES[name](), ax=second) is second
    assert not any(len(getattr(first, artists)) for artists in ARTISTS)
    assert any(len(getattr(second, artists)) for artists in ARTISTS)
    if name != "plot_schur_form":
        assert second.get_xlabel()
    figure.canvas.draw()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.turns(3)
def test_makes_axes_where_none_are_given(name) -> None:
    axes = getattr(analysis, name)(*CASES[name]())
    assert isinstance(axes, mpl.axes.Axes)
    assert axes.figure.number in plt.get_fignums()


def test_values_and_labels_are_drawn() -> None:
    ax = analysis.plot_singular_values(torch.tensor([[3.0, 1.0], [2.0, 1.5]]), label="W")
    assert [line.get_ydata().tolist() for line in ax.lines] == [[3, 1], [2, 1.5]]
    assert ax.get_legend_handles_labels()[1] == ["W"]

    ax = analysis.plot_eigenvalues(torch.tensor([0.5 + 0.5j, 0.5 - 0.5j]), label="eigenvalues")
    assert ax.get_legend_handles_labels()[1] == ["eigenvalues"]
    assert ax.collections[0].get_offsets().tolist() == [[0.5, 0.5], [0.5, -0.5]]

    growth = analysis.transient_growth(torch.stack([W, 0.5 * W]), 5)
    ax = analysis.plot_transient_growth(growth, kreiss=torch.tensor([2.0, 3.0]))
    assert [line.get_ydata()[0] for line in ax.lines] == [1, 1, 2, 3]
    assert [line.get_color() for line in ax.lines[:2]] == [line.get_color() for line in ax.lines[2:]]

    ax = analysis.plot_loss_gradient_norms(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert ax.lines[0].get_ydata().tolist() == [2, 3]


@pytest.mark.nightly
def test_a_choice_is_drawn_with_a_ring_around_what_was_taken() -> None:
    choice = chosen()
    ax = analysis.plot_choice(choice)
    (_, height), *others = ax.collections[-1].get_offsets().tolist()
    assert not others
    assert height == pytest.approx(choice.error)
    with pytest.raises(ValueError, match="choice: expected"):
        analysis.plot_choice(W)


def test_heat_map_shows_tau_downwards_and_nothing_above_the_diagonal() -> None:
    ax = analysis.plot_gradient_norms(torch.tensor([[1.0, 0.0], [1e-2, 1.0]]))
    image = ax.images[0]
    assert image.get_array().mask.tolist() == [[False, True], [False, False]]
    assert image.get_array()[1, 0] == pytest.approx(1e-2)
    assert image.origin == "upper"
    for degenerate in (torch.zeros(2, 2), torch.full((2, 2), torch.nan)):
        analysis.plot_gradient_norms(degenerate).figure.canvas.draw()


def test_without_matplotlib_the_message_names_the_extra(monkeypatch) -> None:
    original = builtins.__import__

    def without_matplotlib(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    for name in CASES:
        arguments = CASES[name]()
        with monkeypatch.context() as patch:
            patch.setattr(builtins, "__import__", without_matplotlib)
            with pytest.raises(ImportError, match="pip install matplotlib"):
                getattr(analysis, name)(*arguments)


def with_modes(*modes):
    """Return a model of exactly these moduli and angles of eigenvalues."""
    blocks = []
    for modulus, angle in modes:
        c, s = modulus * math.cos(angle), modulus * math.sin(angle)
        blocks.append(torch.tensor([[c, -s], [s, c]], dtype=torch.float64))
    A = torch.block_diag(*blocks)
    X = torch.cat([torch.eye(len(A)), torch.ones(1, len(A))]).double()
    return sp.dynamics.StableLinearModel().fit(X, X @ A.mT)


def test_modes_that_stay_as_the_order_grows_are_filled() -> None:
    stays, damped, moved = (0.97, 0.4), (0.9, 1.1), (0.8, 2.0)
    models = [
        with_modes(stays, damped, moved, (0.7, 2.5)),
        with_modes(stays),
        with_modes(stays, (0.93, 1.1), (0.8, 2.1)),
    ]
    stable, new = analysis.plot_stabilisation(models, s=9).collections
    assert new.get_sizes() == [9]
    frequency = models[1].natural_frequencies_[0]
    assert stable.get_offsets().tolist() == [pytest.approx([frequency, n]) for n in (6, 8)]
    assert len(new.get_offsets()) == 1 + 2 + 3
    loose = analysis.plot_stabilisation(models, frequency=0.1, damping=0.5).collections[0].get_offsets()
    assert len(loose) == 4
    with pytest.raises(ValueError, match=r"models: expected a list.*got"):
        analysis.plot_stabilisation([])
    with pytest.raises(ValueError, match=r"models\[1\]: expected a fitted.*got"):
        analysis.plot_stabilisation([models[0], sp.dynamics.StableLinearModel()])


def test_modes_are_drawn_with_frequencies_and_as_fields() -> None:
    model = modes()
    ax = analysis.plot_modes(model, number=1)
    assert f"{model.frequencies_[model.frequencies_ >= 0][0]:.3g}" in ax.get_legend_handles_labels()[1][0]
    assert max(abs(y) for y in ax.lines[0].get_ydata()) == pytest.approx(1)
    X = torch.linspace(0, 20, 60).outer(torch.tensor([1.0, 2.0])).sin().double()
    largest = abs(model.amplitudes(X)).argmax()
    ax = analysis.plot_modes(
        model, number=1, amplitudes=model.amplitudes(X), shape=(2, len(model.modes_) // 2)
    )
    assert ax.images[0].get_array().shape == (2, len(model.modes_) // 2)
    assert f"{abs(model.frequencies_[largest]):.3g}" in ax.get_xticklabels()[0].get_text()
    with pytest.raises(ValueError, match=r"shape: expected.*got"):
        analysis.plot_modes(model, shape=(3, 3))
    with pytest.raises(ValueError, match=r"model: expected a fitted.*got"):
        analysis.plot_modes(sp.dynamics.StableLinearModel())
