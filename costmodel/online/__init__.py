"""Learning during a run: correction by a Gaussian process, fine-tuning, replay."""

from __future__ import annotations
