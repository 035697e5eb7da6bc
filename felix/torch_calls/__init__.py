"""What PyTorch calls an operator: its functions by name, and forms, lists of calls of them.

In: an operator of PyTorch, as JSON.
Out: a call of it.
From: `network`, `frontend`, `workloads`.

`functions` runs forms, without Felix as well; `relax_calls` says which function an operator of
Relax is. Importing `functions` loads torch, `relax_calls` TVM, `form` neither.
"""

from __future__ import annotations
