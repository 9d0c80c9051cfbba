"""Errors, files, typed settings and the hub: what every package stands on."""
