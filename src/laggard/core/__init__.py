"""Contracts that every room shares: errors, units, hosts, schemas, Linux calls."""
