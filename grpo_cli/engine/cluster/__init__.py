"""The fold on a cluster: portions of the input → tasks → their answers in order."""
