"""HTTP around the routes: middleware, authentication, request and response models."""

from __future__ import annotations
