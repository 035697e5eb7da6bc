"""The OpenAPI document: its text, and an example of every response."""

from __future__ import annotations
