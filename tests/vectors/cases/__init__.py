"""The inputs of the vectors, file by file; ``make.py`` adds what the oracle expects of them."""
