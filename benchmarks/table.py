"""``python -m benchmarks.table``: write the pages of costs, networks and stable fits from the numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import costs_table, dynamics_table, networks
from examples.papers.networks import BASELINES

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs"

NETWORKS_HEAD = """# The networks

<!-- Written by `python -m benchmarks.table` from benchmarks/results/cpu.json. Do not edit. -->

All of {{py:mod}}`spectral_param.nn` have the interface of `torch.nn.RNN`, so one is swapped for another by
its name; [Recurrent networks](rnn.md) shows how. $n$ is the number of hidden units. ENRNN has $q = 3n/5$ of
them in the orthogonal block and $s = 2n/5$ in the other one, EUNN is `EUNN(..., layers=2)`, its authors'
default (ours is all $n$ layers, with $n^2$ parameters and more to compute), and ORNN and SpectralRNN have
$k = n$ reflections. ScuRNN, EUNN, URNN and FullCapacityURNN have $n$ complex states. Those with an asterisk
are what these are compared with, in `examples/papers/networks`.

- **Parameters**: independent real numbers in the recurrent matrices, gates included, as
  {{py:func}}`~spectral_param.num_free_parameters` counts.
- **W**: order of the operations that make the recurrent matrix from its parameters, once in each forward
  pass. **A step**: order of those of one time step of one sequence. "Without W" is what
  {{py:meth}}`~spectral_param.Householder.operator` of `Householder`, `Givens` and `FourierUnitary` costs. On
  a CPU the networks take it from $n = 512$ on with $k ≤ n/4$ reflections or Fourier transforms, and from
  $n = 1024$ on with up to 8 layers of rotations or the FFT's order.
- **Training step**: forward and backward pass of {batch} sequences of {steps} steps with {inputs} inputs,
  the recurrent matrix from its parameters, and the optimizer's step (SGD, or `StiefelRMSprop` for
  FullCapacityURNN), divided by the time of `torch.nn.RNN` with as many units. Where that was measured
  stands below the table.
- **What holds** for the recurrent matrix after every optimizer step. What an activation makes of it is
  another question: [Choosing a constraint](choosing.md#relu).
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


def main() -> None:
    """Write the pages."""
    names = ("cpu.json", "memory.json", "dynamics.json")
    results, memory, dynamics = (json.loads((RESULTS / name).read_text()) for name in names)
    (DOCS / "costs.md").write_text(costs_table.page(results, memory))
    (DOCS / "networks.md").write_text(networks_page(results))
    (DOCS / "dynamics_compared.md").write_text(dynamics_table.page(dynamics))


if __name__ == "__main__":
    main()
