"""Errors, files, typed settings, logs and the hub: shared by every package, importing none."""
