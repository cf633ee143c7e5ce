"""What-ifs: causes removed, other speeds and links, and other strategies.

Read `counterfactual.py` first (changes under the run's own strategy), then `strategy_estimate.py`
(other strategies). `strategy_catalog.py` lists the strategies; the other modules simulate them.
This folder may import the other folders of `replay/` except `bytedance/`, and what they import.
"""
