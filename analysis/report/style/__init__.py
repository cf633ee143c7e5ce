"""Style of figures: colors, labels, canvas."""
