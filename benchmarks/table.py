"""``python -m benchmarks.table``: write the pages of costs, networks and stable fits from the numbers."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks import costs_table, dynamics_forecasts_table, dynamics_table, networks, states_table
from examples.papers.networks import BASELINES

RESULTS = Path(__file__).resolve().parent / "results"
DOCS = Path(__file__).parent.parent / "docs"

NETWORKS_HEAD = """# The networks

<!-- Written by `python -m benchmarks.table` from benchmarks/results/cpu.json. Do not edit. -->

All networks of {{py:mod}}`spectral_param.nn` have the interface of `torch.nn.RNN`, so a model can [swap one
for another](rnn.md). $n$ is the number of hidden units. In the table, ENRNN has $q = 3n/5$ units in the
orthogonal block and $s = 2n/5$ in the other block. EUNN has 2 layers of rotations, its authors' default
(`EUNN(..., layers=2)`; the default here is all $n$ layers). ORNN and SpectralRNN have $k = n$ reflections.
ScuRNN, EUNN, URNN and FullCapacityURNN have $n$ complex states. An asterisk marks networks for comparison,
from `examples/papers/networks`.

- **Parameters**: independent real numbers in the recurrent matrices and gates, as
  {{py:func}}`~spectral_param.num_free_parameters` counts them.
- **W**: order of the number of operations to compute the recurrent matrix, once after each optimizer step.
- **A step**: order of the number of operations for one time step of one sequence. "Without W" means
  {{py:meth}}`~spectral_param.Householder.operator` of `Householder`, `Givens` and `FourierUnitary`, which
  multiplies by the factors of W. On a CPU the networks use it from $n = 512$ on with at most $n/4$
  reflections or with Fourier transforms, and from $n = 1024$ on with at most 8 layers of rotations or the
  FFT's order.
- **Training step**: time of a forward pass, a backward pass and an optimizer step for {batch} sequences of
  {steps} steps with {inputs} inputs, relative to `torch.nn.RNN` with as many units. The optimizer is SGD,
  or `StiefelRMSprop` for FullCapacityURNN. The machine is named below the table.
- **What holds** for the recurrent matrix after every optimizer step. An activation [can change
  this](bounds.md#relu) for the network.
"""

Result = dict[str, Any]


def networks_page(results: dict[str, Result]) -> str:
    """Return the page of the networks; what is not in the results is "not measured".

    Args:
        results: What ``python -m benchmarks`` wrote.
    """
    sizes = networks.SIZES
    head = NETWORKS_HEAD.format(batch=networks.BATCH, steps=networks.STEPS, inputs=networks.INPUTS)
    columns = [
        "network",
        "parameters of W",
        f"at n = {sizes[0]}",
        "W, $O(·)$",
        "a step, $O(·)$",
        *(f"training step, n = {n}" for n in sizes),
        "what holds",
        "paper",
    ]
    lines = [f"| {' | '.join(columns)} |", f"|---|---|---:|---|---|{'---:|' * len(sizes)}---|---|"]
    for name, system in networks.SYSTEMS.items():
        times = (_relative(results.get(networks.name(n)), name) for n in sizes)
        cells = [
            f"{name}*" if name in BASELINES else f"{{py:class}}`~spectral_param.nn.{name}`",
            system.formula,
            f"{system.count(sizes[0]):,}",
            system.matrix,
            system.product,
            *times,
            system.guarantee,
            system.paper,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    parts = [head, "\n".join(lines), ""]
    for n in sizes:
        if result := results.get(networks.name(n)):
            baseline = costs_table.milliseconds(result["contenders"][networks.BASELINE]["median"])
            parts.append(
                f"n = {n}: `torch.nn.RNN` took {baseline} milliseconds. {costs_table.origin(result)}.\n"
            )
    return "\n".join(parts)


def _relative(result: Result | None, contender: str) -> str:
    if result is None:
        return "not measured"
    rows = result["contenders"]
    return f"{rows[contender]['median'] / rows[networks.BASELINE]['median']:.2g}"


def pages() -> dict[str, str]:
    """Return all pages by their file names, from the committed numbers."""
    names = ("cpu", "memory", "device", "norms", "dynamics", "forecasts", "states")
    results, memory, device, norms, dynamics, forecasts, states = (
        json.loads((RESULTS / f"{name}.json").read_text()) for name in names
    )
    return {
        **costs_table.pages(results, memory, device, norms),
        "networks.md": networks_page(results),
        "dynamics_compared.md": dynamics_forecasts_table.page(forecasts),
        "dynamics_one_step.md": dynamics_table.page(dynamics),
        "dynamics_states.md": states_table.page(states),
    }


def main() -> None:
    """Write the pages, or say which of them do not follow the numbers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail where a page would change")
    if not parser.parse_args().check:
        for name, page in pages().items():
            (DOCS / name).write_text(page)
        return
    stale = [name for name, page in pages().items() if (DOCS / name).read_text() != page]
    if stale:
        raise SystemExit(f"{', '.join(stale)}: run python -m benchmarks.table")


if __name__ == "__main__":
    main()
