"""The fold on a cluster: portions of the input → tasks on Ray → their answers in order."""
