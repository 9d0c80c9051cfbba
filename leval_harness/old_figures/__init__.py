"""Figures of PosGen."""
