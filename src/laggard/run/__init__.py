"""Run on this machine: processes, supervision, fidelity monitoring and churn."""
