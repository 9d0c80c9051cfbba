"""Makes the generators beside this file importable, and what other tests write results with."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "leaderboard")]
