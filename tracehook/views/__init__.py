"""Pictures of a log: the report, the timeline and the snapshot."""
