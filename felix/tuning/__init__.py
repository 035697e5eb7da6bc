"""What the round loop of `felix.tune` is made of; start reading there."""

from __future__ import annotations
