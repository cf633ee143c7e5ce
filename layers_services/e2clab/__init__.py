"""E2Clab's service classes, workflow plays and managers, run by E2Clab's own code."""
