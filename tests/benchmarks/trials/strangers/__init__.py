"""A second list of mistakes: written from merged fixes before anything was built for them."""
