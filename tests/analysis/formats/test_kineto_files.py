"""One rank's file: every version's and device's categories, faults of the exporter, and columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.analysis.formats.kineto.categories import CATEGORIES, UNREAD, find_category_code
from laggard.analysis.formats.kineto.collective_names import (
    is_collective,
    is_collective_kernel,
    normalize_collective_name,
)
from laggard.analysis.formats.kineto.encoded_text import EncodedText
from laggard.analysis.formats.kineto.trace_file import (
    RankTrace,
    format_file_notes,
    read_rank_trace,
)
from laggard.analysis.formats.registry import open_run
from laggard.core.errors import TraceFormatError
from laggard.core.span_schema import Phase
from tests.analysis.kineto_traces import (
    MAIN,
    STREAM,
    annotation,
    device_step,
    document,
    event,
    host_document,
    host_step,
    write,
)

Change = Callable[[dict[str, Any]], object]


def read(tmp_path: Path, made: Mapping[str, Any] | str | bytes) -> RankTrace:
    file = tmp_path / "rank0.json"
    content = made if isinstance(made, bytes) else made.encode() if isinstance(made, str) else b""
    file.write_bytes(content or json.dumps(made).encode())
    return read_rank_trace(file, only_file=True)


def lanes(tmp_path: Path, made: dict[str, Any] | str) -> list[tuple[int, ...]]:
    """All spans of the only rank of a run: step, phase, lane, start, duration and bytes."""
    text = made if isinstance(made, str) else json.dumps(made)
    (tmp_path / "alone.json").write_text(text.replace('"world_size": 2', '"world_size": 1'))
    spans = open_run(tmp_path / "alone.json").spans
    columns = (spans.step, spans.phase, spans.lane, spans.start_ns, spans.dur_ns, spans.bytes)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def in_other_words(events: list[dict[str, Any]], words: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{**e, "cat": words.get(e["cat"], e["cat"])} for e in events]


OLD = {
    "cpu_op": "Operator",
    "user_annotation": "Operator",
    "kernel": "Kernel",
    "gpu_memcpy": "Memcpy",
    "gpu_memset": "Memset",
    "cuda_runtime": "Runtime",
}
SCHEMAS = {
    "torch 1.8": OLD,
    "xpu": {"cuda_runtime": "xpu_runtime", "cuda_driver": "xpu_driver"},
    "rocm": {"cuda_runtime": "hip_runtime"},
    "privateuse1": {"cuda_runtime": "privateuse1_runtime"},
    "mtia": {"cuda_runtime": "mtia_runtime", "kernel": "mtia_ccp_events"},
    "driver": {"cuda_runtime": "cuda_driver"},
}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_device_has_the_same_phases_in_every_schema(tmp_path: Path, schema: str) -> None:
    events = [e for n in range(2) for e in device_step(n, n * 1000, n * 1000 + 500)]
    expected = lanes(tmp_path, document(0, events))
    assert {tuple(Phase)[phase].value for _, phase, *_ in expected} == {
        "fetch", "h2d", "forward", "backward", "comm", "optimizer",
    }  # fmt: skip
    made = document(0, in_other_words(events, SCHEMAS[schema]))
    assert lanes(tmp_path, made) == expected
    found = read(tmp_path, made)
    assert not found.unread_categories
    assert not format_file_notes([found])


def test_a_host_of_torch_1_8_has_the_same_phases(tmp_path: Path) -> None:
    """Its annotations are operators, and it does not record the function that evaluates nodes."""
    events = [e for n in range(2) for e in host_step(n, n * 1000)]
    old = in_other_words(events, OLD)
    for each in old:
        each["name"] = each["name"].removeprefix("autograd::engine::evaluate_function: ")
    assert lanes(tmp_path, document(0, old)) == lanes(tmp_path, document(0, events))


COPIES = {
    "Memcpy HtoD (Pageable -> Device)": True,
    "CopyHostToDevice": True,
    "Memcpy M2D": True,
    "zeCommandListAppendMemoryCopy(H2D)": True,
    "Memcpy DtoH (Device -> Pageable)": False,
    "Memcpy D2M": False,
    "CopyDeviceToHost": False,
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_to_the_device_have_one_name(tmp_path: Path, name: str) -> None:
    events = [event(name, 0, 1, cat="gpu_memcpy", tid=STREAM, correlation=1)]
    found = read(tmp_path, document(0, events)).events
    assert found.name[0].startswith("Memcpy HtoD") is COPIES[name]


def test_transfers_of_mtia_are_copies(tmp_path: Path) -> None:
    events = [
        event("dma_request", 0, 1, cat="mtia_ccp_events", direction="HOST_TO_DEVICE"),
        event("dma_request", 1, 2, cat="mtia_dma", direction="DEVICE_TO_HOST"),
        event("job", 2, 3, cat="mtia_ccp_events", correlation=3),
    ]
    found = read(tmp_path, document(0, events)).events
    assert [CATEGORIES[code] for code in found.category] == ["gpu_memcpy", "gpu_memcpy", "kernel"]
    assert [name.startswith("Memcpy HtoD") for name in found.name] == [True, False, False]


def test_unknown_categories_of_devices_are_counted(tmp_path: Path) -> None:
    events = [
        *(event("op", n, n + 1, cat="npu_kernel", stream=1) for n in range(3)),
        event("op", 4, 5, cat="npu_dma", correlation=7),
        event("wall", 5, 6, cat="my_host_tool", anything=1),
        event("f.py(3): f", 6, 7, cat="python_function", correlation=1),
        event("aten::mm", 7, 8),
    ]
    found = read(tmp_path, document(0, events))
    assert found.unread_categories == {"npu_kernel": 3, "npu_dma": 1}
    assert len(found.events) == 1
    assert format_file_notes([found, found]) == (
        "Events of devices in the unknown category 'npu_dma' were not read: 2.",
        "Events of devices in the unknown category 'npu_kernel' were not read: 6.",
    )
    assert find_category_code("npu_kernel") == UNREAD


def test_many_unknown_categories_are_bounded(tmp_path: Path) -> None:
    events = [event("op", n, n + 1, cat=f"c{n}", stream=1) for n in range(1000)]
    assert len(read(tmp_path, document(0, events)).unread_categories) == 100


IMPOSSIBLE: dict[str, tuple[str, Any]] = {
    "negative": ("dur", -3),
    "not finite": ("dur", float("nan")),
    "infinite": ("ts", float("-inf")),
    "too late": ("ts", 1e30),
    "wrapped": ("dur", 18446744073709551.0),
    "null": ("ts", None),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_events_with_impossible_times_are_left_out_and_told(tmp_path: Path, kind: str) -> None:
    key, value = IMPOSSIBLE[kind]
    made = host_document(0)
    made["traceEvents"][4][key] = value
    found = read(tmp_path, made)
    assert len(found.events) == len(made["traceEvents"]) - 2
    assert found.repairs[-1] == "events with impossible times, left out: 1"
    assert format_file_notes([found])[0].startswith("rank0.json was written with faults: ")


def test_lost_times_are_zero_in_the_second_half_of_a_file(tmp_path: Path) -> None:
    """As long as zero is far from all other times; a trace may also begin at zero."""
    base = 1.6e15
    events = [event("aten::mm", base + n, base + n + 1) for n in range(50)]
    lost = [event("gemm", 0.0, 0.0, cat="kernel", tid=STREAM, correlation=n) for n in range(40)]
    found = read(tmp_path, document(0, [*events, *lost]))
    assert len(found.events) == 50
    assert found.repairs == ("events with impossible times, left out: 40",)
    begins = [event("aten::mm", n, n + 1) for n in range(50)]
    assert len(read(tmp_path, document(0, [*begins, *lost])).events) == 90
    with pytest.raises(TraceFormatError, match="the times of all its 2 events are impossible"):
        read(tmp_path, document(0, [event("x", 1e30, 1e30), event("y", 1e30, 1e30)]))


def test_a_file_with_faults_is_the_same_trace(tmp_path: Path) -> None:
    made = host_document(0)
    expected = lanes(tmp_path, made)
    text = json.dumps(made)
    text = text.replace('"name": "aten::to"', '"name": "aten::to\x02"')
    text = text.replace('"args": {}', r'"args": {"file": "C:\Users\y", "v": -inf, "w": NaN}')
    text = text.replace('"pid": 1}]', '"pid": 1}, ]')
    found = read(tmp_path, text)
    assert lanes(tmp_path, text) == expected
    assert [each.split(": ")[1] for each in found.repairs[:3]] == ["96", "4", "96"]
    assert found.repairs[3:] == ("commas after the last event, ignored: 1",)


def test_numbers_and_texts_name_the_same_thread(tmp_path: Path) -> None:
    events = [
        event("a", 0, 1),
        {**event("b", 1, 2), "tid": str(MAIN), "pid": "1"},
        event("c", 2, 3, tid=MAIN + 1),
        {**event("d", 3, 4), "tid": ["x"]},
    ]
    assert read(tmp_path, document(0, events)).events.thread.tolist() == [0, 0, 1, 2]


@given(
    device=st.lists(st.tuples(st.integers(-1, 6), st.integers(0, 50)), max_size=15),
    calls=st.lists(st.tuples(st.integers(-1, 6), st.integers(0, 50)), max_size=15),
    window=st.tuples(st.integers(0, 50), st.integers(0, 50)),
)
def test_events_of_a_window_and_those_that_its_calls_launched(
    tmp_path_factory: pytest.TempPathFactory,
    device: list[tuple[int, int]],
    calls: list[tuple[int, int]],
    window: tuple[int, int],
) -> None:
    made = [event("k", at, at + 1, cat="kernel", correlation=number) for number, at in device]
    made += [event("c", at, at, cat="cuda_runtime", correlation=number) for number, at in calls]
    events = read(tmp_path_factory.mktemp("events"), {"traceEvents": made}).events
    start_ns, end_ns = (1000 * at for at in window)
    inside = events.started_between(start_ns, end_ns)
    mask = (events.start_ns >= start_ns) & (events.start_ns < end_ns)
    assert inside.start_ns.tolist() == events.start_ns[mask].tolist()
    assert inside.name.tolist() == events.name[mask].tolist()
    own = inside.where((inside.category == 5) & (inside.correlation >= 0))
    at = dict(zip(own.correlation.tolist(), own.start_ns.tolist(), strict=True))
    expected = [
        (start, number, at[number])
        for start, number, code in zip(
            events.start_ns.tolist(), events.correlation.tolist(), events.category.tolist(),
            strict=True,
        )
        if code == 2 and number in at
    ]  # fmt: skip
    found, called = events.launched_by(own)
    assert (
        list(zip(found.start_ns.tolist(), found.correlation.tolist(), called.tolist(), strict=True))
        == expected
    )


def test_times_since_1970_stay_exact(tmp_path: Path) -> None:
    made = document(0, [event("a", 1_669_783_687_464_181, 1_669_783_687_464_182)])
    made["baseTimeNanoseconds"] = 0
    events = read(tmp_path, made).events
    assert events.start_ns.tolist() == [1_669_783_687_464_181_000]
    assert events.end_ns.tolist() == [1_669_783_687_464_182_000]


def test_an_enclosing_event_precedes_those_inside(tmp_path: Path) -> None:
    events = [event("c", 5, 6), event("b", 0, 4), event("a", 0, 9), event("d", 0, 4)]
    assert read(tmp_path, document(0, events)).events.name.tolist() == ["a", "b", "d", "c"]


@pytest.mark.parametrize("rank", range(2))
def test_notes_of_many_files_are_few(rank: int) -> None:
    empty: Any = None
    traces = [
        RankTrace(Path(f"rank{n}.json"), n, 0, "", "", empty, repairs=("x",))
        for n in range(9 + rank)
    ]
    assert len(format_file_notes(traces)) == 7
    assert format_file_notes(traces)[-1] == f"{3 + rank} more files were written with faults."


@given(
    st.lists(st.sampled_from(["", "a", "ab", "b" * 90, "ProfilerStep#1"]), max_size=20), st.data()
)
def test_encoded_text_behaves_like_an_array(texts: list[str], data: st.DataObject) -> None:
    words = tuple(dict.fromkeys(texts))
    plain = np.array(texts, dtype=np.str_)
    encoded = EncodedText(np.array([words.index(t) for t in texts], dtype=np.int32), words)
    rows = np.array(data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts))))
    for mine, theirs in ((encoded, plain), (encoded[rows.astype(bool)], plain[rows.astype(bool)])):
        assert len(mine) == len(theirs)
        assert list(mine) == mine.tolist() == theirs.tolist()
        for prefix in ("", "a", "Prof"):
            assert np.array_equal(
                np.char.startswith(mine, prefix), np.char.startswith(theirs, prefix)
            )
        assert np.array_equal(np.char.endswith(mine, "b"), np.char.endswith(theirs, "b"))
        assert np.array_equal(mine == "ab", theirs == "ab")
        assert np.array_equal(mine != "ab", theirs != "ab")
        assert np.array_equal(np.isin(mine, ["a"]), np.isin(theirs, ["a"]))
        assert np.array_equal(np.char.add(mine, theirs), np.char.add(theirs, theirs))
    for row in range(len(texts)):
        assert encoded[row] == texts[row]


NORMALIZED = {
    "allreduce": [
        "c10d::allreduce_", "gloo:all_reduce", "nccl:all_reduce", "c10d::allreduce_coalesced_",
        "_c10d_functional::all_reduce", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)",
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "gloo:sparse_all_reduce",
        "ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymDevArgs)", "oneccl_allreduce_pcie",
        "hcom_allReduce_", "gloo:all_reduce_coalesced",
    ],
    "allgather": [
        "c10d::allgather_", "c10d::_allgather_base_", "c10d::allgather_into_tensor_coalesced_",
        "c10d::allgather_coalesced_", "gloo:all_gather", "nccl:_all_gather_base",
        "nccl:all_gather_into_tensor_coalesced", "_c10d_functional::all_gather_into_tensor",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    ],
    "reducescatter": [
        "c10d::reduce_scatter_", "c10d::_reduce_scatter_base_", "nccl:_reduce_scatter_base",
        "c10d::reduce_scatter_tensor_coalesced_", "_c10d_functional::reduce_scatter_tensor",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    ],
    "alltoall": [
        "c10d::alltoall_base_", "c10d::alltoall_", "gloo:all_to_all", "nccl:all_to_allv",
        "_c10d_functional::all_to_all_single",
    ],
    "broadcast": [
        "c10d::broadcast_", "gloo:broadcast", "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgs)",
    ],
    "sendrecv": ["ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"],
    "send": ["c10d::send", "gloo:send", "nccl:isend"],
    "recv": ["c10d::recv_", "c10d::recv_any_source_", "gloo:recv", "nccl:recv"],
    "barrier": ["c10d::barrier", "gloo:barrier"],
    "generic": ["ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"],
    "": ["void deep_ep::intranode::cached_notify_combine<(int)8>(void**)", "oneccl_wait"],
    "dispatch": ["void deep_ep::intranode::dispatch<(int)8, (int)768, (int)8192>(int4*, float*)"],
    "combine": ["void deep_ep::internode_ll::combine<(bool)1, (int)7168>(void*)"],
}  # fmt: skip


@pytest.mark.parametrize("expected", NORMALIZED)
def test_variants_of_a_collective_have_one_name(expected: str) -> None:
    for name in NORMALIZED[expected]:
        assert normalize_collective_name(name) == expected, name
        assert is_collective(name), name


KERNELS = (
    "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)",
    "void deep_ep::intranode::notify_dispatch<(int)8>(int const*)",
    "void deep_ep::intranode::cached_notify_combine<(int)8>(void**)",
    "void deep_ep::internode::dispatch<false, 8>(int4*)",
    "oneccl_allreduce_pcie",
    "rcclKernel_AllReduce",
)
OTHERS = (
    "gemm", "void at::native::elementwise_kernel<128>()", "moe_dispatch_tokens", "combine_heads",
    "reduce_kernel", "Memcpy HtoD (Pageable -> Device)", "deep_ep::layout::get_dispatch_layout",
    "accl_gemm", "cclip_grad_kernel",
)  # fmt: skip


@pytest.mark.parametrize("name", [*KERNELS, *OTHERS])
def test_kernels_that_communicate(name: str) -> None:
    assert is_collective_kernel(name) is (name in KERNELS)


def test_sizes_of_a_kernel_and_of_a_host_s_collective(tmp_path: Path) -> None:
    events = [
        event(
            "ncclDevKernel_AllReduce", 0, 1, cat="kernel", **{"In msg nelems": 9, "dtype": "Half"}
        ),
        annotation("gloo:all_reduce", 2, 3, **{"Input Dims": [[2, 3]], "Input type": ["double"]}),
        event("aten::mm", 4, 5, **{"Input Dims": [[2, 3]], "Input type": ["double"]}),
    ]
    found = read(tmp_path, document(0, events)).events
    assert found.elements.tolist() == [9, 6, 0]
    assert found.bytes.tolist() == [18, 48, 0]


def test_ranks_of_several_schemas_are_one_run(tmp_path: Path) -> None:
    documents = [host_document(rank) for rank in range(2)]
    documents[1]["traceEvents"] = in_other_words(documents[1]["traceEvents"][:-1], OLD)
    assert open_run(write(tmp_path / "traces", documents)).world_size == 2


def test_ranks_that_were_merged_into_one_file_are_refused(tmp_path: Path) -> None:
    merged, other = host_document(0), host_document(1)
    for each in other["traceEvents"]:
        each["pid"] = 2
    merged["traceEvents"] += other["traceEvents"]
    with pytest.raises(TraceFormatError, match=r"several ranks were in one file — .* each rank"):
        open_run(write(tmp_path / "traces", [merged]))
