"""The static leaderboard page: opens from disk, data as script files, no network."""

from leval_harness.page.write import write_page

__all__ = ["write_page"]
