"""Statistics for test sets of a few documents with many questions each: functions of arrays."""
