"""Pools as metrics: `flagstone.metrics.prometheus` and `flagstone.metrics.opentelemetry`.

Each needs its library: `pip install 'flagstone[prometheus]'` or `'flagstone[opentelemetry]'`. Numbers are read from a
pool when they are asked for, by `Pool.stats()`; in between nothing runs.
"""
