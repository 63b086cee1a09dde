"""The library's main job on an embedded default: ``python -m examples.demo``.

Three recurrent networks with equally many free parameters learn two long-memory tasks. A table and
figures show what came out. Tasks, networks and training are those of :mod:`examples.papers`. Read in this
order: ``settings``, ``pipeline``, ``report``, ``figures``, ``cli``.
"""
