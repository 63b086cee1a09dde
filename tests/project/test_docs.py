import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
from pathlib import Path

import pytest

import spectral_param as sp
from benchmarks import measures, runner, table, written
from benchmarks.cases import networks
from benchmarks.measures import cpu, dynamics, forecasts
from examples.papers import table as papers
from examples.papers.networks import BASELINES
from examples.papers.sections import SECTIONS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INVENTORIES = sorted((DOCS / "inventories").glob("*.txt"))
BUILT = {DOCS / "_build", DOCS / "tasks", DOCS / "tutorials"}
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if not BUILT & set(page.parents)]
MEASURED = re.compile(r"^```\{measured\} (\S+)\n((?:[^`\n]+\n)*)```$", re.MULTILINE)


def named_on(text):
    """Return the tables of a page: the function of each, and its arguments, one on a line."""
    return [*MEASURED.findall(text), *(block[1:] for block in written.BLOCK.findall(text))]


# Each table of the pages: the function and its arguments.
TABLES = sorted(
    {
        (function, *arguments.splitlines())
        for page in PAGES
        for function, arguments in named_on(page.read_text(encoding="utf-8"))
    }
)


def listed(heading):
    """Return the names in the table below a heading of the first page of the API."""
    page = (DOCS / "api/index.md").read_text()
    section = re.split(rf"^## {heading}\b.*$", page, flags=re.M)[1].split("```")[1]
    return re.findall(r"^   (\w+)$", section, flags=re.M)


def test_api_lists_each_name_of_the_package_once():
    page = (DOCS / "api/index.md").read_text()
    modules = re.findall(r"^\.\. modulesummary:: spectral_param\.(\w+)$", page, flags=re.M)
    names = [*listed("Constraints"), *listed("Constrain and train"), *modules]
    assert sorted(names) == sorted(sp.__all__)


@pytest.mark.parametrize("inventory", INVENTORIES, ids=lambda path: path.stem)
def test_inventory_has_names_that_exist(inventory):
    for line in inventory.read_text().splitlines()[3:]:
        name, _, page = line.split()
        pkgutil.resolve_name(name if "." in name else f"builtins.{name}")  # Raises where there is none.
        assert page.endswith(".html")


def test_each_tutorial_has_a_picture_and_a_line_in_the_gallery():
    for script in (ROOT / "examples").glob("plot_*.py"):
        text = script.read_text(encoding="utf-8")
        picture = re.search(r"^# sphinx_gallery_thumbnail_path = '(.+)'$", text, flags=re.MULTILINE)
        assert picture, script
        assert (DOCS / picture[1]).is_file()
        line = text.split("\n\n")[1]
        assert "\n" not in line, f"{script}: expected a line below the title"


TASKS = sorted((ROOT / "tasks").glob("plot_*.py"))


@pytest.mark.parametrize("script", TASKS, ids=lambda path: path.stem)
def test_a_task_is_short_prints_something_and_names_a_page(script):
    lines = script.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 40
    title, _, *rest = lines[:8]
    assert (title[:3], rest[0], *rest[2::2], rest[5]) == ('"""', "", "", '"""', ""), (
        "expected title, sentence, links"
    )
    assert any(line.lstrip().startswith("print(") for line in lines)
    assert lines[-1] == "plt.show()"
    pages = re.findall(r":doc:`/([\w/]+)`", lines[5])
    assert pages
    for page in pages:
        source = ROOT / "examples" / f"{page.removeprefix('tutorials/')}.py"
        assert (DOCS / f"{page}.md").exists() or (page.startswith("tutorials/") and source.exists()), page


def test_there_are_twelve_tasks():
    assert [int(script.stem.split("_")[1]) for script in TASKS] == list(range(1, 13))


# Links ------------------------------------------------------------------------------------------


def anchors(page):
    """Return the headings of a page as GitHub and MyST name them, and its MyST targets."""
    text = re.sub(r"^(`{3,}).*?^\1$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    slugs = (re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings)
    return {*slugs, *re.findall(r"^\(([\w-]+)\)=$", text, flags=re.MULTILINE)}


MARKDOWN = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page):
    text = page.read_text(encoding="utf-8")
    assert "{doc}" not in text, "expected [text](page.md), which Markdown has, too"
    text = re.sub(r"^(`{3,}).*?^\1$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^()\s]+)\)", text):
        if re.match(r"https?:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{target}: no such file"
        assert not anchor or anchor in anchors(file), f"{target}: no such heading"


def configured(name):
    """Return a dictionary of the configuration of the documentation."""
    for statement in ast.parse((DOCS / "conf.py").read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            return ast.literal_eval(statement.value)
    raise AssertionError(f"docs/conf.py: expected `{name} = {{...}}`")


def redirects():
    """Return where addresses of earlier pages lead."""
    return configured("redirects")


def test_what_is_pasted_from_a_page_has_its_imports():
    """The first code that a reader sees; later code on the page goes on from it."""
    for page in DOCS.glob("*.md"):
        blocks = re.findall(r"^```\{(?:testcode|doctest)\}\n(.*?)^```$", page.read_text("utf-8"), re.S | re.M)
        shown = [block for block in blocks if not block.startswith(":hide:")]
        if shown:
            assert "import spectral_param as sp" in shown[0], page
        for name in ("torch", "np"):
            used = [i for i, block in enumerate(shown) if re.search(rf"(?<![\w.]){name}\.\w", block)]
            imported = rf"^(?:>>> )?import {name if name == 'torch' else 'numpy as np'}$"
            known = [i for i, block in enumerate(shown) if re.search(imported, block, re.M)]
            if used:
                assert known, (page, name)
                assert known[0] <= used[0], (page, name)


def test_every_heading_that_moved_is_on_the_page_that_it_leads_to():
    for old, headings in configured("moved_headings").items():
        for heading, target in headings.items():
            assert heading not in anchors(DOCS / f"{old}.md"), heading
            assert heading in anchors((DOCS / target).with_suffix(".md")), heading


def test_every_address_of_an_earlier_page_leads_to_a_page_and_a_heading():
    for address, target in redirects().items():
        assert not (DOCS / f"{address}.md").exists(), f"{address}: a page, and a redirect"
        name, _, anchor = target.partition("#")
        page = (DOCS / name).with_suffix(".md")
        assert page.exists(), f"{address} leads to {target}: no such page"
        assert not anchor or anchor in anchors(page), f"{address} leads to {target}: no such heading"


def test_no_page_that_ever_was_is_lost():
    log = ["git", "log", "--format=", "--name-only", "--diff-filter=DR", "--no-renames", "--", "docs/*.md"]
    done = subprocess.run(log, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout:
        pytest.skip("No history, or no page was removed in the part of it that is here.")
    gone = {Path(line) for line in done.stdout.split() if not (ROOT / line).exists()}
    lost = {str(page) for page in gone} - {f"docs/{address}.md" for address in redirects()}
    assert lost == set(), "add them to `redirects` in docs/conf.py"


# Tables -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shown", TABLES, ids=" ".join)
@pytest.mark.turns(8)
def test_each_table_of_a_page_is_read_from_the_committed_numbers(shown):
    function, *arguments = shown
    header, rows = table.table(function, arguments)
    lines = table.markdown(header, rows).splitlines()
    assert len(lines) == 2 + len(rows)
    cells = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
    assert cells == {len(header) + 1}


def test_every_directive_is_read():
    named = sum(page.read_text(encoding="utf-8").count("```{measured}") for page in PAGES)
    found = sum(len(MEASURED.findall(page.read_text(encoding="utf-8"))) for page in PAGES)
    assert named == found > 0


def test_tables_that_stand_in_the_markdown_are_those_of_the_committed_numbers():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert text.count("<!-- written ") == len(written.BLOCK.findall(text))
        assert bool(written.BLOCK.search(text)) == (page in written.PAGES), page
        assert written.written(text) == text, f"{page}: run python -m benchmarks --write"


def test_the_runner_writes_the_tables_of_pages(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    block = "<!-- written examples.papers.table.counts\n-->\n\n| old |\n\n<!-- end -->"
    page.write_text(f"# Page\n\n{block}\n\n{block}\n\nText.\n", encoding="utf-8")
    monkeypatch.setattr(written.write, "__defaults__", ((page,),))
    assert runner.main(["--write"]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.count(table.markdown(*papers.counts())) == 2
    assert "old" not in text
    assert text.endswith("<!-- end -->\n\nText.\n")
    capsys.readouterr()
    assert runner.main(["--write"]) == 0
    assert capsys.readouterr().out == ""


def test_each_function_of_a_table_is_on_a_page():
    functions = {shown[0] for shown in TABLES}
    names = [f"benchmarks.measures.{subject}" for subject in measures.subjects()]
    for name in (*names, "benchmarks.table", "examples.papers.table"):
        for function, value in inspect.getmembers(importlib.import_module(name), inspect.isfunction):
            is_table = value.__annotations__.get("return") == "Table" and value.__module__ == name
            if is_table and not function.startswith("_") and function != "table":
                assert f"{name}.{function}" in functions, f"{name}.{function} is on no page"


def keys_of(function):
    return [key for name, *arguments in TABLES if name == function for key in arguments]


def test_every_case_of_the_benchmark_is_on_a_page_with_its_origin():
    names = [table.shown(name, result) for name, result in table.load("cpu").items()]
    origins = {key for name, *keys in TABLES if name.endswith("origins") for key in keys}
    for name in names:
        assert any(map(name.startswith, [*keys_of("benchmarks.measures.cpu.times"), cpu.NETWORKS])), name
        assert any(map(name.startswith, origins)), name


def test_every_section_with_results_is_in_the_log():
    runs = papers.Runs()
    done = {name for name in SECTIONS if any(row.section == name for row in runs.done)}
    assert done == set(keys_of("examples.papers.table.scores"))


def first_column(shown):
    return [row[0] for row in table.table(*shown)[1]]


def test_tables_have_a_row_for_each_method_network_and_row():
    methods = set(dynamics.METHODS)
    assert set(first_column(["benchmarks.measures.dynamics.excesses"])) == methods
    assert len(first_column(["benchmarks.measures.forecasts.families"])) == len(forecasts.METHODS)
    times = first_column(["benchmarks.measures.cpu.training_steps"])
    assert times[:-1] == list(networks.SYSTEMS)
    text = (DOCS / "networks.md").read_text(encoding="utf-8")
    for name in networks.SYSTEMS:
        assert (
            f"| {name}* |" in text
            if name in BASELINES
            else f"| {{py:class}}`~spectral_param.nn.{name}` |" in text
        )
    runs = papers.Runs()
    assert first_column(["examples.papers.table.rows"]) == [f"`{row.name}`" for row in runs.done]
    assert len(first_column(["examples.papers.table.runs"])) == sum(
        len(runs.results[row.name]) for row in runs.done
    )
    counts = papers.counts()[1][-1]
    shown = [
        len(re.findall(";", row[4])) + 1
        for state in ("reached", "missed")
        for row in papers.targets(state)[1]
    ]
    assert counts[1] == str(sum(shown))


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        ("benchmarks.measures.cpu.nosuch", [], "expected module and function"),
        ("benchmarks.nosuch.times", [], "expected module and function"),
        ("benchmarks.measures.cpu.times", ["nosuch"], "expected the beginning of the name"),
        ("benchmarks.table.origins", ["cpu", "nosuch"], "expected rows"),
    ],
)
def test_a_table_that_cannot_be_read_is_an_error(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        table.table(function, arguments)


def test_numbers_are_flush_right_and_lines_in_cells_are_no_borders():
    rows = [["a|b", "1.5", "∞", "n = 3"], ["c", "", "-2; 0", "4"], ["d", "x", "never", ""]]
    text = table.markdown(["", "one", "two", "three"], rows)
    assert text.splitlines()[1:3] == ["|---|---|---:|---|", r"| a\|b | 1.5 | ∞ | n = 3 |"]


def test_the_page_shows_the_table_and_the_build_names_what_is_missing(tmp_path):
    testing = pytest.importorskip("sphinx.testing.util")
    source = tmp_path / "source"
    source.mkdir()
    (source / "conf.py").write_text(
        f"import sys; sys.path.insert(0, {str(DOCS)!r})\nextensions = ['myst_parser', 'measured']"
    )
    good = "```{measured} benchmarks.measures.cpu.times\nbounded norm\n```\n"
    (source / "index.md").write_text(f"# Page\n\n{good}\n{good.replace('bounded', 'nosuch')}")
    app = testing.SphinxTestApp("html", srcdir=source)
    try:
        app.build()
        page = (app.outdir / "index.html").read_text(encoding="utf-8")
        header, rows = cpu.times("bounded norm")
        assert page.count("<tr") == 1 + len(rows)
        assert all(f"<p>{cell}</p>" in page for cell in header if cell)
        assert "index.md:7" in app.warning.getvalue()
        assert "expected the beginning of the name of a case, got 'nosuch norm'" in app.warning.getvalue()
    finally:
        app.cleanup()
