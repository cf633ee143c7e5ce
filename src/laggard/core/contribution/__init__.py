"""Parts of what several have caused or earned together; pure.

`shapley.py` divides the cost of several causes, `client_contributions.py` the gain of a round
among clients. `payments.py` turns contributions into payments of whole tokens, and `ledger.py`
keeps them.
"""
