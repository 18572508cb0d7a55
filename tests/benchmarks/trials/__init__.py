"""The parts of ``answers.py``: what is simulated, planted, asked, and counted."""
