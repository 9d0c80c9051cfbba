"""Sweep and training configurations, YAML only."""
