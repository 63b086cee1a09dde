"""Sphinx configuration."""

import doctest
from importlib.metadata import version as installed_version

project = "spectral_param"
author = "the spectral_param developers"
project_copyright = "2026, the spectral_param developers"
release = version = installed_version("spectral-param")

# No intersphinx, so that the documentation builds without a network.
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build"]

# Every reference has a target, except names of other packages: that would take intersphinx.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(collections|geotorch|numpy|torch)\..*")]

html_theme = "furo"
html_title = f"{project} {release}"

myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_numpy_docstring = False

# The examples of a page start from the same state, whichever pages ran before it.
doctest_global_setup = """
import torch
import spectral_param as sp

torch.manual_seed(0)
"""
# Without IGNORE_EXCEPTION_DETAIL, one of Sphinx's defaults: error messages are documented too.
doctest_default_flags = (
    doctest.DONT_ACCEPT_TRUE_FOR_1 | doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
)
