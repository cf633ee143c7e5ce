"""Federated training: a server asks some clients in every round, which train on their own samples.

`parameters.py` has the settings, `client.py` the client's side. The rounds are in
`core/rules/federated_rounds.py`, and the selection of clients in `core/selection/`. Of the other
strategies, this folder imports only `strategies/base/` and `strategies/server/`.
"""
