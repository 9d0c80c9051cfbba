"""Result cards: what other people's collections of results read."""

from leval_harness.cards.write import write_cards

__all__ = ["write_cards"]
