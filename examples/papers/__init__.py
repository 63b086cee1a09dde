"""The papers' experiments: ``python -m examples.papers list | run ROW | table``.

Read in this order: ``config`` (a row is one file in ``rows/``), ``tasks``, ``networks``, ``optimizers``,
``trainer``, ``parallel``, ``runs``, ``record``, ``measures``, ``table``, ``plot``, ``cli``.
"""
