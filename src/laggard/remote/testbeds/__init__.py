"""Testbeds of real machines: how each plans, reserves, describes, meters and releases them."""
