"""Pure analysis of records: no clock, no disk, no engine."""
