"""Statement of a training about its end: the content of `done.json`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from laggard.core.errors import RunFolderError
from laggard.core.files.input_files import read_bounded
from laggard.core.node_values import Count, NodeMessage, Number, Real, describe_invalid
from laggard.core.run_schema import StopReason

_MOST_BYTES = 1 << 16
_log = logging.getLogger(__name__)


class TrainingEnd(NodeMessage):
    """Content of `done.json`: the end of training; times are CLOCK_MONOTONIC of its node.

    Attributes:
        stopped_by: stopping rule that ended the training.
        steps: number of steps.
        samples: number of samples of all ranks.
        accuracy: last accuracy.
        evaluations: number of evaluations.
        zero_ns: time of the first step.
        end_ns: time of the end.
        paused_ns: duration of all evaluations that paused training.
        makespan_s: virtual seconds from the first step to the end, without pauses.
        versions: version of the server's model; None without a server.
    """

    stopped_by: StopReason
    steps: Count
    samples: Count
    accuracy: Real | None
    evaluations: Count
    zero_ns: Number
    end_ns: Number
    paused_ns: Count
    makespan_s: Annotated[Real, Field(ge=0)]
    versions: Count | None = None


def read_training_end(path: Path) -> TrainingEnd | None:
    """Return the content of `done.json`; None if training did not reach its end.

    An agent writes an empty object, to end the link sampler. Damaged content is reported in the
    log.
    """
    if not path.exists():
        return None
    try:
        content = read_bounded(path, _MOST_BYTES)
        return None if content.strip() == b"{}" else TrainingEnd.model_validate_json(content)
    except (RunFolderError, ValidationError) as error:
        reason = describe_invalid(error) if isinstance(error, ValidationError) else error
        _log.warning("%s is not used: %s", path.name, reason)
        return None
