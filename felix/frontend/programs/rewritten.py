"""Names of the programs that compute a model's values in another way than the model does.

They are part of the names of their groups, so a report can say what became of a group.
"""

from __future__ import annotations

#: A product whose epilogue scales rows, and the programs that give it statistics and weights.
NORMED_PRODUCT, NORM_STATISTICS, NORM_WEIGHTS = "normed_product", "norm_statistics", "norm_weights"
#: A product that computes what several do, the parts of its result, and its weights.
MERGED_PRODUCT, MERGED_PART, MERGED_WEIGHTS = "merged_product", "merged_part", "merged_weights"

_MEANING = {
    NORMED_PRODUCT: "a norm is folded into its product",
    MERGED_PRODUCT: "products of one tensor are one product",
    NORM_STATISTICS: "it has the statistics of rows for products that a norm is folded into",
}


def meaning(symbol: str) -> str | None:
    """What is another way in a program of this name; None if it computes as the model does."""
    said = [text for name, text in _MEANING.items() if name in symbol]
    return "; ".join(said) or None


def normed(symbol: str) -> str:
    """The name of a product of this name with a norm folded into it."""
    is_merged = MERGED_PRODUCT in symbol
    return f"{MERGED_PRODUCT}_{NORMED_PRODUCT}" if is_merged else NORMED_PRODUCT


def first(words: list[str]) -> list[str]:
    """The words of a name, those of this module in front, so that they are never cut off."""
    return sorted(words, key=lambda word: meaning(word) is None)
