"""Questions for ``match``: conventions drawn at random, the numbers that they give, and chance."""
