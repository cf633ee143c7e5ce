"""The continuum on one machine: a sandbox that the kernel cleans up, and a namespace per host in
it.
"""
