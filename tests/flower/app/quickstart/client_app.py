"""Client: logistic regression on samples of its own, whose labels one plane separates."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

FEATURES, SAMPLES, STEPS = 500, 600, 20

app = ClientApp()


def draw_samples(context: Context) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(int(context.node_config["partition-id"]))
    samples = generator.normal(size=(SAMPLES, FEATURES))
    plane = np.random.default_rng(99).normal(size=FEATURES)
    return samples, (samples @ plane > 0).astype(float)


def predict(samples: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-(samples @ weights)))


def compute_loss(predicted: np.ndarray, labels: np.ndarray) -> float:
    likely = np.where(labels > 0, predicted, 1 - predicted)
    return float(-np.log(likely + 1e-12).mean())


@app.train()
def train(message: Message, context: Context) -> Message:
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    samples, labels = draw_samples(context)
    for _ in range(STEPS):
        predicted = predict(samples, weights)
        weights = weights - 0.1 * samples.T @ (predicted - labels) / SAMPLES
    metrics = {"train_loss": compute_loss(predicted, labels), "num-examples": SAMPLES}
    content = {"arrays": ArrayRecord([weights]), "metrics": MetricRecord(metrics)}
    return Message(content=RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    samples, labels = draw_samples(context)
    predicted = predict(samples, weights)
    metrics = {
        "eval_loss": compute_loss(predicted, labels),
        "eval_acc": float(np.mean((predicted > 0.5) == labels)),
        "num-examples": SAMPLES,
    }
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)
