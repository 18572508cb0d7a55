"""Lists of mistakes from fixes and reports of trainers, and what judges the answers to them."""
