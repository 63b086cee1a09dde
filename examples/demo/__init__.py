"""The library's main jobs on data that are there: ``python -m examples.demo``.

Five parts, each with several seeds: recurrent networks that remember, one that follows a shuffle, a network
with a certificate under attack, a forecast beside least squares, and where Adam ends on a sphere. Each has a
table and a figure. The
training of the first part is that of :mod:`examples.papers`. Read in this order: ``settings``, ``memory``,
``cards``, ``certificate``, ``forecast``, ``sphere``, ``report``, ``figures``, ``cli``.
"""
