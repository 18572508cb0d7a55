"""Wrong implementations of TRL's loss, as people write them; and what has to be said of them."""
