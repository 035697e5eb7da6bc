"""Norms folded into the products behind them."""
