"""The flags that commands share."""
