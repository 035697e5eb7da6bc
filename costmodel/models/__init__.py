"""The models and their files; all map rows [B, R, F] and a mask [B, R] to ln(latency_us) [B].

In: rows of features.
Out: ln(latency).
From: `training`, `registry`, `online`, `felix.search`.

`segment_mlp` is the network, `analytic` the formula that stands in where nothing was measured,
`feature_columns` reads quantities out of rows for both, `checkpoint` writes and loads them.
"""

from __future__ import annotations
