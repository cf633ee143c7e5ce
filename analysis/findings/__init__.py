"""Findings: stragglers with their costs, and the sentences that state them."""
