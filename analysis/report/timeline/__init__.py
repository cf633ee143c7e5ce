"""Interactive timeline of the report: shares of time in cells.

Read `document.py` first: it builds the data that `timeline.js` draws. `activity.py` and
`activity_cells.py` compute the shares. This folder may import `report/style/`, `findings/` and
`tables/`.
"""
