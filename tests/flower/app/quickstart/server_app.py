"""Server: federated averaging."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart.client_app import FEATURES

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    FedAvg().start(
        grid=grid,
        initial_arrays=ArrayRecord([np.zeros(FEATURES)]),
        num_rounds=int(context.run_config["num-server-rounds"]),
    )
