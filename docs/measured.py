"""The directive ``measured``: a table of the committed numbers, see :mod:`benchmarks.table`."""

import sys
from pathlib import Path

from sphinx.util.docutils import SphinxDirective

sys.path.insert(0, str(Path(__file__).parents[1]))  # benchmarks and examples stand beside docs.
from benchmarks import table


class Measured(SphinxDirective):
    """The table that a function returns for the lines of the content. What it raises fails the build."""

    required_arguments = 1
    has_content = True

    def run(self):
        """Return the table."""
        try:
            found = table.table(self.arguments[0], self.content)
        except Exception as error:
            raise self.error(f"measured: {type(error).__name__}: {error}") from error
        lines = table.markdown(*found)
        if self.arguments[0].startswith("benchmarks.") and table.MARK in lines:
            lines += f"\n\n{table.NOTE}"
        return self.parse_text_to_nodes(lines)


def setup(app):
    """Add the directive."""
    app.add_directive("measured", Measured)
    return {"parallel_read_safe": True}
