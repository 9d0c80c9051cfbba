"""Result cards: what other people's collections of results read."""

from leval_leaderboard.cards.write import write_cards

__all__ = ["write_cards"]
