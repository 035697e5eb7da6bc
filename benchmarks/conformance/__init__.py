"""Suites of cases of one operator each, and ledgers of the state that each case is in."""
