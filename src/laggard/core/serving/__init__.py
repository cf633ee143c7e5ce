"""Rules and figures of inference: whose turn it is, where a network is cut, who is asked."""
