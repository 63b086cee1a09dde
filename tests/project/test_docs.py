import pkgutil
import re
from pathlib import Path

import pytest

import spectral_param as sp

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INVENTORIES = sorted((DOCS / "inventories").glob("*.txt"))


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
    pictures = (DOCS / "thumbnails.py").read_text()
    drawn = re.findall(r'^def (plot_\d\w*)\(ax\):\n    """.+"""$', pictures, flags=re.MULTILINE)
    assert sorted(drawn) == sorted(path.stem for path in (ROOT / "examples").glob("plot_*.py"))
