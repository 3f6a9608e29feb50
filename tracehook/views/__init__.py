"""Pictures of a log: the report and the timeline."""
