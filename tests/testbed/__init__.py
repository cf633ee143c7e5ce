"""A stand-in testbed: machines with real SSH servers, and a Grid'5000 that lends them out."""
