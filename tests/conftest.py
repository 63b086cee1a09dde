"""Every test starts from the same random state, by default on one thread: its matrices are small.

The threads are those of $OMP_NUM_THREADS, the random state is that of --seed.
"""

import functools
import gc
import os
import subprocess
import sys
from collections.abc import Hashable, Iterator
from pathlib import Path

# For what a test starts, too. Before torch and numpy are imported, which read them once.
for library in ("OMP", "MKL", "OPENBLAS"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="random state that every test starts from")


def covering(cases: list[set[Hashable]]) -> set[int]:
    """Return which of the cases have each of their values once, if possible: the first ones that add most."""
    missing, chosen = set[Hashable]().union(*cases), set[int]()
    while missing:
        i = max(range(len(cases)), key=lambda i: len(cases[i] & missing))
        chosen.add(i)
        missing -= cases[i]
    return chosen


def often(cases: list[pytest.Function]) -> set[int]:
    """Return which cases of a test a default run has, always the same.

    One of each n with ``pytest.mark.turns(n)``. Where decorators of parametrize multiply, so many that each
    value of each decorator occurs.
    """
    turns = cases[0].get_closest_marker("turns")
    if turns is not None:
        return {i for i in range(len(cases)) if i % turns.args[0] == turns.kwargs.get("first", 0)}
    decorators = [mark.args[0] for mark in cases[0].iter_markers("parametrize")]
    if len(decorators) < 2:
        return set(range(len(cases)))
    names = [tuple(each.replace(",", " ").split()) if isinstance(each, str) else each for each in decorators]
    return covering([{(of, *(id(c.callspec.params[n]) for n in of)) for of in names} for c in cases])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to a nightly run what differs little from another case of the same test."""
    found: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            cases = found.setdefault(item.nodeid.partition("[")[0], [])
            if item.get_closest_marker("nightly") is None:
                cases.append(item)
    for cases in filter(None, found.values()):
        chosen = often(cases)
        for i, case in enumerate(cases):
            if i not in chosen:
                case.add_marker(pytest.mark.nightly)


def pytest_collection() -> None:
    """Collect no garbage among thousands of tests and modules, which stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Let no collection of garbage look at them again."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> None:
    number = request.config.getoption("seed")
    # Without a device, torch.manual_seed writes down the stack for each kind of them: longer than a test.
    if torch.accelerator.is_available():
        torch.manual_seed(number)
    else:
        torch.default_generator.manual_seed(number)


@pytest.fixture
def reduced() -> Iterator[str]:
    """Let products lose precision, and give the setting that says so."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield torch.backends.mkldnn.matmul.fp32_precision
    torch.set_float32_matmul_precision(before)


@functools.cache
def run_in_a_process_of_its_own(path: Path, marks: str, seed: int) -> str:
    """Run the tests of a file with these marks; return what they print, or nothing if all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks]
    done = subprocess.run(
        [*command, "--seed", str(seed), str(path)],
        env={**os.environ, "SPECTRAL_PARAM_FRESH": "1"},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr if done.returncode else ""


def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Run tests that are marked ``fresh`` where no other test has been: they copy the process.

    A process in which autograd has threads cannot be copied, and it has some after a test of a device.
    """
    if item.get_closest_marker("fresh") is None or "SPECTRAL_PARAM_FRESH" in os.environ:
        return None

    def call() -> None:
        nightly = item.get_closest_marker("nightly") is not None
        marks = "fresh and nightly" if nightly else "fresh and not nightly"
        printed = run_in_a_process_of_its_own(item.path, marks, item.config.getoption("seed"))
        assert not printed, printed

    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    report = pytest.TestReport.from_item_and_call(item, pytest.CallInfo.from_call(call, when="call"))
    item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
