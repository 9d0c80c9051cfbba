"""What is run: sweep configs, cells and their identity, executors, progress."""
