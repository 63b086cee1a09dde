"""The library's main jobs on data that are there: ``python -m examples.demo``.

Four parts, each with several seeds: recurrent networks that remember, one that follows a shuffle, a network
with a certificate under attack, and a forecast beside least squares. Each has a table and a figure. The
training of the first part is that of :mod:`examples.papers`. Read in this order: ``settings``, ``memory``,
``cards``, ``certificate``, ``forecast``, ``report``, ``figures``, ``cli``.
"""
