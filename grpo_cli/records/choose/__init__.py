"""Which objects are read, and which rows are one group."""
