"""Comparison of a campaign's setups, from its table of results.

Read `campaign_comparison.py` (entry point) first. `result_table.py` loads the table,
`setups.py` groups its rows, `setup_effects.py` compares setups with a baseline and
`axis_effects.py` has the effects of single axes and of pairs. `comparison_text.py` prints all of
it, and `effect_figure.py` draws it. The folder may import the core and, of the analysis,
`tables/`, `estimates/` and `report/style/`.
"""
