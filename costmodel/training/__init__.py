"""Training and scoring on a data set.

In: a data set.
Out: a checkpoint, scores, a model card.
From: `cli`, `online`.

`train` trains by `losses`, `calibration` fits the line that makes it right on average; `evaluate`
scores by `metrics`, `model_card` writes the page about it. `compare` (with trees of `xgboost`)
and `ablate` say what features and terms are worth, `provenance` where figures come from.
"""

from __future__ import annotations
