"""Templates of the pages in docs/results, and the sentences that state figures there."""
