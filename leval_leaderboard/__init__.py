"""What came out: sweep, results, statistics, tables, figures, page, command line."""
