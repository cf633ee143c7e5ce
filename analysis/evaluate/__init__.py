"""How good the analysis is: runs with known stragglers, what is found in them, and the score of the
one against the other.
"""
