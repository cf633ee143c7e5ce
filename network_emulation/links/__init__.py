"""Links: the plan of all constraints and the two backends that apply it."""
