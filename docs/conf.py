"""Sphinx configuration."""

import doctest
import functools
import html
import importlib
import inspect
import json
import re
import sys
import textwrap
import typing
from importlib.metadata import version as installed_version
from pathlib import Path

import matplotlib.axes
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.addnodes import desc_content, download_reference, pending_xref
from sphinx.ext.autosummary import Autosummary
from sphinx_gallery.sorting import FunctionSortKey

import spectral_param.analysis._plot
import spectral_param.analysis._stabilisation

sys.path.insert(0, str(Path(__file__).parent))  # Extensions, and what draws pictures.

project = "spectral_param"
author = "the spectral_param developers"
project_copyright = "2026, the spectral_param developers"
release = version = installed_version("spectral-param")

extensions = [
    "measured",
    "matplotlib.sphinxext.plot_directive",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.doctest",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx-mathjax-offline",  # Puts MathJax beside the pages: formulas need no other host.
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "sphinx_reredirects",
]
exclude_patterns = ["_build"]

# Where pages of earlier versions went.
redirects = {
    "api": "api/index.html",
    "bounds_measured": "costs_networks.html#guarantees",
    "costs_gpu": "costs.html#on-a-gpu",
    "costs_mixing": "costs_weights.html#mixing-matrices",
    "costs_norms": "costs_weights.html#bounded-norms",
    "costs_orthogonal": "costs_weights.html#orthogonal-weights",
    "derivation_dynamics": "dynamics_fits.html#how-dynamics-are-fitted",
    "dynamics_compared": "fits.html#forecasts",
    "dynamics_one_step": "fits.html#fits-of-one-step",
    "experiments": "papers.html#run-them",
    "results": "papers.html",
    "results_log": "papers.html#task-by-task",
    "tried_with": "guesses.html#tried-with",
}
redirect_html_template_file = "redirect.html"

# Where headings of pages went that are still there.
moved_headings = {
    "bounds": {
        "long-products": "powers.html",
        "many-steps-the-spectral-radius": "powers.html",
        "transient-growth": "powers.html",
        "a-spectral-radius-below-1-does-not-bound-transient-growth": "powers.html",
        "one-step": "powers.html",
        "one-step-the-spectral-norm": "powers.html",
        "numerical-range": "powers.html",
        "the-numerical-range": "powers.html",
        "relu": "powers.html",
        "relu-and-the-spectral-radius": "powers.html",
        "forecast": "powers.html",
        "a-forecast": "powers.html",
        "contracting": "forgetting.html",
        "networks-that-forget-a-diagonal-metric": "forgetting.html",
        "contracting-time": "forgetting.html",
        "in-continuous-time": "forgetting.html",
        "chunks": "forgetting.html",
        "chunks-of-a-sequence-at-once": "forgetting.html",
        "gated": "gates.html",
        "gates-that-forget": "gates.html",
        "lipschitz": "lipschitz.html",
        "networks-lipschitz-constants-and-gradients": "lipschitz.html",
        "tighter": "lipschitz.html",
        "a-tighter-number": "lipschitz.html",
        "batch-normalisation": "lipschitz.html",
        "invertible": "invertible.html",
        "invertible-blocks": "invertible.html",
        "fixed-point": "fixed_points.html",
        "a-unique-fixed-point": "fixed_points.html",
        "splitting": "fixed_points.html",
        "the-largest-set": "fixed_points.html",
    },
    "derivation_spectral_radius": {
        "how-it-is-tracked-from-step-to-step": "derivation_tracking.html",
        "sparse-matrices": "derivation_tracking.html",
        "tracking": "derivation_tracking.html",
        "what-is-proven-in-each-step": "derivation_tracking.html",
        "what-is-saved": "derivation_tracking.html",
    },
    "rnn": {
        "following": "following.html",
        "one-step-at-a-time": "sequences.html",
        "long-sequences": "sequences.html",
        "chunked-training": "sequences.html",
        "train-in-chunks": "sequences.html",
        "linear-recurrences": "sequences.html",
        "how-the-sequence-is-computed": "sequences.html",
    },
    "costs": {
        "eigenvalues": "costs_weights.html",
        "a-layer-of-your-size": "costs_weights.html",
        "beside-the-plain-way": "costs_weights.html",
        "adversarial-runs": "costs_weights.html",
        "bounded-norms": "costs_weights.html",
        "beside-torch-bounded-norms": "costs_weights.html",
        "in-a-network": "costs_weights.html",
        "exact-at-all-frequencies": "costs_weights.html",
        "orthogonal-weights": "costs_weights.html",
        "beside-torch-and-geotorch-orthogonal-weights": "costs_weights.html",
        "weights-of-any-shape": "costs_weights.html",
        "in-other-peoples-code": "costs_weights.html",
        "held-after-the-step": "costs_weights.html",
        "mixing-matrices": "costs_weights.html",
        "how-exact-they-are": "costs_weights.html",
        "a-million-4--4-matrices": "costs_weights.html",
        "recurrent-networks": "costs_networks.html",
        "beside-torch-recurrent-networks": "costs_networks.html",
        "a-cell-in-a-loop": "costs_networks.html",
        "without-activation": "costs_networks.html",
        "memory-of-the-recurrences-forward-and-backward": "costs_networks.html",
        "reflections-measured": "costs_networks.html",
        "products-of-reflections": "costs_networks.html",
        "guarantees": "costs_networks.html",
        "what-guarantees-cost-in-accuracy": "costs_networks.html",
        "digits-pixel-by-pixel": "costs_networks.html",
        "the-adding-problem": "costs_networks.html",
        "permuted-mnist": "costs_networks.html",
        "deep-equilibrium-networks": "costs_networks.html",
        "gates-measured": "costs_networks.html",
        "gates-that-forget": "costs_networks.html",
        "tighter-measured": "costs_networks.html",
        "a-tighter-lipschitz-number": "costs_networks.html",
    },
}

# Every reference has a target, names of other packages included.
nitpicky = True
nitpick_ignore_regex = [
    ("py:class", r"spectral_param\._register\.constrain\.M|spectral_param\.init\.Weight"),  # Type variables.
    ("py:class", r"spectral_param\._recurrence\..*"),  # Records that only layers see.
    # Sphinx does not resolve names in the signatures of networks, which are made from a TypedDict.
    ("py:class", r"Angles|Form|Mode|Nonlinearity|Order|Tensor|nn\.Module"),
]

# The inventories, with a small part of each package's names, lie here, so that a build needs no network.
# A reference to a name that is missing fails the build: add "name type page" to the file of its package.
intersphinx_mapping = {
    name: (url, f"inventories/{name}.txt")
    for name, url in {
        "matplotlib": "https://matplotlib.org/stable/",
        "numpy": "https://numpy.org/doc/stable/",
        "python": "https://docs.python.org/3/",
        "scipy": "https://docs.scipy.org/doc/scipy/",
        "torch": "https://docs.pytorch.org/docs/stable/",
    }.items()
}

sphinx_gallery_conf = {
    "examples_dirs": ["../tasks", "../examples"],
    "gallery_dirs": ["tasks", "tutorials"],
    "ignore_pattern": r"^(?!plot_)",
    # By number: plot_10 comes after plot_9.
    "within_subsection_order": FunctionSortKey(functools.partial(re.sub, r"^plot_(\d)_", r"plot_0\1_")),
    "abort_on_example_error": True,
    "download_all_examples": False,
    # What torch.manual_seed and plotting return is not shown.
    "ignore_repr_types": "Generator|matplotlib",
    "image_srcset": ["2x"],
    "thumbnail_size": (400, 400),
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
}

html_theme = "furo"
html_title = f"{project} {release}"
pygments_dark_style = "github-dark"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["search.js"]

myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = False  # The pages of docs/api are written by hand; the tables on the first are not.
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "description"
# The options of a network are described once.
autodoc_typehints_description_target = "documented_params"
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

# The package imports it for type checkers only, and its annotations have to be resolved.
for module in (
    spectral_param.analysis._plot,
    spectral_param.analysis._stabilisation,
    spectral_param.dynamics._model.use,
):
    module.Axes = matplotlib.axes.Axes

# Pictures are drawn by the code beside them. One page shares its variables through :context:, and names
# its files, since MyST numbers them anew in each block.
plot_pre_code = ""
plot_include_source = True
plot_html_show_source_link = False
plot_html_show_formats = False
plot_formats = [("png", 160)]
plot_apply_rcparams = True
plot_rcparams = {
    "figure.figsize": (8.0, 3.4),
    "figure.constrained_layout.use": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10.5,
    "font.size": 9.5,
    "legend.frameon": False,
}


class ModuleSummary(Autosummary):
    """The table of all public names of a module, each with the first line of its docstring."""

    required_arguments = 1

    def run(self):
        """Return the table."""
        module = self.arguments[0]
        self.env.ref_context["py:module"] = module  # As `.. currentmodule::` does.
        self.content = StringList(importlib.import_module(module).__all__)
        self.options["nosignatures"] = None
        return super().run()


def resolve_annotations(app, function, bound_method):
    """Replace annotations, which are strings in this package, by what they stand for.

    Sphinx does so for functions, but not for the constructors of classes.
    """
    if inspect.isfunction(function) and function.__name__ == "__init__":
        function.__annotations__ = typing.get_type_hints(function)
        function.__dict__.pop("__signature__", None)  # It would be looked at first.


def describe(app, page, template, context, doctree):
    """Give a page its first paragraph as the description that search engines show, if it has none."""
    paragraphs = doctree.findall(nodes.paragraph) if doctree else []
    text = next((p.astext() for p in paragraphs if isinstance(p.parent, (nodes.section, desc_content))), "")
    if text and 'name="description"' not in context["metatags"]:
        text = html.escape(textwrap.shorten(text, 200))
        context["metatags"] += f'<meta name="description" content="{text}" />'


def lead_on(app, page, template, context, doctree):
    """Let an old address of a heading lead to the page that has it now."""
    if headings := moved_headings.get(page):
        context["metatags"] += (
            f"<script>const moved = {json.dumps(headings)}, page = moved[location.hash.slice(1)];"
            "if (page) location.replace(page + location.hash);</script>"
        )


def link_scripts(app, doctree):
    """Let links to tutorials and tasks, scripts in Markdown, lead to the pages that are made of them."""
    for link in list(doctree.findall(download_reference)):
        if script := re.search(r"(examples|tasks)/(plot_\w+|README)\.\w+$", link["reftarget"]):
            folder = {"examples": "tutorials", "tasks": "tasks"}[script[1]]
            target = f"/{folder}/{script[2].replace('README', 'index')}"
            page = pending_xref(refdomain="std", reftype="doc", reftarget=target, refexplicit=True)
            page["refdoc"] = link["refdoc"]
            page += link.children
            link.replace_self(page)


def setup(app):
    """Add the directive and the handlers."""
    app.connect("doctree-read", link_scripts, priority=400)  # Before scripts are collected as downloads.
    app.add_directive("modulesummary", ModuleSummary)
    app.connect("html-page-context", describe)
    app.connect("html-page-context", lead_on)
    app.connect("autodoc-before-process-signature", resolve_annotations)
