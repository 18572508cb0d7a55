"""The command line: one file per command, and the options they share."""
