"""The library's main job on an embedded default: ``python -m examples.demo``.

Three recurrent networks with equally many free parameters learn two long-memory tasks. A table and
figures show what came out. Read in this order: ``settings``, ``tasks``, ``networks``, ``train``,
``checkpoint``, ``figures``, ``report``, ``cli``.
"""
