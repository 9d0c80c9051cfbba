"""How far a model reads: fixed targets under contexts of growing length."""
