"""Reading what was logged. Imports neither torch nor the native core: logs are read on any machine."""
