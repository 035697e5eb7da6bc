"""What models learn from: measured schedules, their features, and splits.

In: measured schedules.
Out: arrays and splits.
From: `cli`, `training`, `collect`, `online`.

`dataset` keeps measured schedules on disk; `features` turns them into training arrays, by
`felix_bridge` (Felix's features) or `tvm_features` (TVM's), in several processes by
`parallel_features`; `split` parts them, `replay` is the sample that travels with a checkpoint.
`workloads_cpu` and `workloads_gpu` list what is collected.
"""

from __future__ import annotations
