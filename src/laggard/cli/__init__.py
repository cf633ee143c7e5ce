"""Command line of Laggard, by groups of commands."""
