"""The command line, nothing else: one module a command, thin over the other packages."""
