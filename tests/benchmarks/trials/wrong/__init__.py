"""Wrong implementations of TRL's loss, as people write them; each with what has to be said of it."""
