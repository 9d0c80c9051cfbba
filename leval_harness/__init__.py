"""Long-context evaluation: everything that runs, reads results and shows them."""
