"""Sphinx configuration."""

import doctest
import inspect
import typing
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
nitpick_ignore_regex = [
    ("py:.*", r"(collections|geotorch|numpy|torch)\..*"),
    ("py:class", r"spectral_param\.constraints\.M"),  # A type variable.
]

html_theme = "furo"
html_title = f"{project} {release}"

myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "description"
# The short format leaves its mark, a tilde, in types that have a Literal in them.
autodoc_typehints_format = "fully-qualified"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# The examples of a page start from the same state, whichever pages ran before it.
doctest_global_setup = """
import torch
import spectral_param
import spectral_param as sp
from torch.nn.utils.parametrize import register_parametrization

torch.manual_seed(0)
"""
# Without IGNORE_EXCEPTION_DETAIL, one of Sphinx's defaults: error messages are documented too.
doctest_default_flags = doctest.DONT_ACCEPT_TRUE_FOR_1 | doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def resolve_annotations(app, function, bound_method):
    """Replace annotations, which are strings in this package, by what they stand for.

    Sphinx does so for functions, but not for the constructors of classes.
    """
    if inspect.isfunction(function) and function.__name__ == "__init__":
        function.__annotations__ = typing.get_type_hints(function)
        function.__dict__.pop("__signature__", None)  # It would be looked at first.


def setup(app):
    """Connect the handler."""
    app.connect("autodoc-before-process-signature", resolve_annotations)
