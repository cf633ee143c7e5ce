"""What if a run had trained by another strategy: its work and its links, taken through that
strategy's rule.
"""
