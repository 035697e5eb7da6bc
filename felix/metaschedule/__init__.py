"""Felix inside MetaSchedule, and TVM's own search inside Felix."""

from __future__ import annotations
