"""The log of a process: how it is written, and the one reader of it. Imports no other room."""
