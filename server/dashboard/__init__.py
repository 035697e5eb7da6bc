"""The pages under `/dashboard`: rendered here from the store, kept up to date by the browser.

In: a caller's request.
Out: HTML.
From: `app`.

A page is complete as it comes from the server. Its scripts fetch the same page again when the
job has news (`/v1/jobs/{id}/events/stream`) and put the new content of its live regions in place;
charts are drawn by Plotly from the JSON of the REST API.
"""

from __future__ import annotations
