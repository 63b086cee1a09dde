"""What a release is made of says the same everywhere: versions, addresses, Pythons, hashes of actions."""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = {
    path.stem: path.read_text(encoding="utf-8") for path in (ROOT / ".github/workflows").glob("*.yml")
}


def test_the_address_of_the_repository_stands_in_one_place() -> None:
    address = PROJECT["project"]["urls"]["Repository"]
    name = address.rsplit("/", 1)[1]
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    for file in filter(None, listed):
        if (ROOT / file).suffix in {".md", ".py", ".yml", ".yaml", ".toml", ".cff"} and (
            ROOT / file
        ).is_file():
            found = re.findall(
                rf"https?://(?!pypi)[\w./-]+/{name}\b", (ROOT / file).read_text(encoding="utf-8")
            )
            assert found == ([address] if file == "pyproject.toml" else []), file
    assert '["project"]["urls"]' in WORKFLOWS["release"]


def test_labels_of_addresses_are_what_an_index_takes() -> None:
    """A comma ends a label in the metadata, and an index takes 32 characters."""
    assert all("," not in label and len(label) <= 32 for label in PROJECT["project"]["urls"])


def test_both_archives_have_metadata_that_the_pinned_upload_knows() -> None:
    """hatchling writes its newest version unless it is told which."""
    targets = PROJECT["tool"]["hatch"]["build"]["targets"]
    assert {name: target["core-metadata-version"] for name, target in targets.items()} == {
        "wheel": "2.4",
        "sdist": "2.4",
    }


def test_the_citation_is_of_the_version_and_has_its_day() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {PROJECT['project']['version']}\n" in citation
    day = datetime.date.fromisoformat(re.search(r"^date-released: (\S+)$", citation, re.MULTILINE)[1])
    assert day.year >= 2026


def test_the_classifiers_name_the_pythons_whose_tests_have_to_pass() -> None:
    classified = {
        line.rsplit(" ", 1)[1] for line in PROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", line)
    }
    assert classified == set(re.findall(r'python: "([\d.]+)", command: make test ', WORKFLOWS["checks"]))
    assert min(classified, key=lambda v: int(v[2:])) == PROJECT["project"]["requires-python"].removeprefix(
        ">="
    )


def test_what_nobody_has_run_may_fail() -> None:
    assert "continue-on-error: true" in WORKFLOWS["elsewhere"]
    for row in ("3.14", "macos-latest", "windows-latest", "whl/nightly"):
        assert row in WORKFLOWS["elsewhere"]
        assert row not in WORKFLOWS["checks"]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_an_action_is_named_by_a_hash_and_its_version(name) -> None:
    used = re.findall(r"uses: (.*)$", WORKFLOWS[name], re.MULTILINE)
    assert used
    for action in used:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action), action


def test_an_action_has_one_version() -> None:
    used = {use for text in WORKFLOWS.values() for use in re.findall(r"uses: (.*)$", text, re.MULTILINE)}
    assert len({use.split("@")[0] for use in used}) == len(used)


def test_the_recipe_needs_what_the_package_needs() -> None:
    page = (ROOT / "docs/contributing.md").read_text(encoding="utf-8")
    recipe = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1]
    project = PROJECT["project"]
    needed = {line.replace("torch", "pytorch").replace(">", " >", 1) for line in project["dependencies"]}
    run = re.search(r"  run:\n((?:    - .*\n)+)", recipe)[1]
    assert {line.removeprefix("    - ") for line in run.splitlines()} == {
        "python >=${{ python_min }}",
        *needed,
    }
    assert f'python_min: "{project["requires-python"].removeprefix(">=")}"' in recipe
    assert f'version: "{project["version"]}"' in recipe
    assert f"summary: {project['description']}" in recipe
