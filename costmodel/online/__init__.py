"""How a model follows the measurements of a tuning run.

In: a model, new latencies.
Out: a corrected model.
From: `felix.search`, `cli`.

`gaussian_process` corrects its predictions by a Gaussian process over its errors; `finetune`
trains its weights.
"""

from __future__ import annotations
