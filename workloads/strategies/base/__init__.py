"""Base classes and rules that several families of strategies share."""
