import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mlx_platform.core.tensors import TensorSpec
from mlx_platform.traffic.readers.signature import Signature

NONE = Signature()
TEXTS = Signature(columns=("text",), outputs=(TensorSpec("vec", "FP32", (None, 2)),), task="tensors")
KIND = "openinference.span.kind"


def span(number: int = 0, **more: Any) -> dict[str, Any]:
    attributes = {
        KIND: "EMBEDDING",
        "input.value": "refund please",
        "embedding.model_name": "e5-small",
        "embedding.embeddings.0.embedding.vector": [0.03, -0.77],
        "llm.token_count.prompt": 4,
    }
    return {
        "name": "embed",
        "context": {"trace_id": "t", "span_id": f"s{number}"},
        "start_time": "2026-03-08T06:59:58Z",
        "end_time": "2026-03-08T06:59:58.250Z",
        "attributes": attributes,
    } | more


def llm(**attributes: Any) -> dict[str, Any]:
    return span(attributes={KIND: "LLM", "llm.model_name": "small"} | attributes)


def test_an_embedding_gives_its_text_its_tokens_and_its_vector(write, read) -> None:
    write([span()])
    (record,), stats = read(NONE)
    assert record.inputs["input.value"]["data"] == ["refund please"]
    assert record.inputs["llm.token_count.prompt"]["data"] == [4]
    assert record.outputs == {"embedding": {"datatype": "FP64", "shape": [1, 2], "data": [0.03, -0.77]}}
    assert record.timings_ms == {"total": 250.0}
    assert (record.server_id, stats.format) == ("e5-small", "openinference")


def test_texts_and_vectors_get_the_names_of_the_model(write, read) -> None:
    write([span()])
    (record,), _ = read(TEXTS)
    assert record.inputs["text"]["data"] == ["refund please"]
    assert record.outputs["vec"]["shape"] == [1, 2]


def test_several_embeddings_of_one_span_are_rows_in_their_order(write, read) -> None:
    embedded = {
        f"embedding.embeddings.{at}.embedding.{name}": value
        for at in (10, 2)
        for name, value in (("text", f"text {at}"), ("vector", [at, 0.5]))
    }
    write([span(attributes={KIND: "EMBEDDING"} | embedded)])
    (record,), _ = read(TEXTS)
    assert record.inputs["text"]["data"] == ["text 2", "text 10"]
    assert record.outputs["vec"]["data"] == [2.0, 0.5, 10.0, 0.5]


def test_messages_stand_for_the_input_of_a_language_model(write, read) -> None:
    messages = {
        "llm.input_messages": [{"message": {"role": "system", "content": "Be brief."}}],
        "llm.input_messages.1.message.content": "Why?",
        "llm.output_messages.0.message.content": "Because.",
        "llm.token_count.completion": 2,
    }
    write([llm(**messages)])
    (record,), _ = read(NONE)
    assert record.inputs["input.value"]["data"] == ["Be brief.\nWhy?"]
    assert record.outputs["output.value"]["data"] == ["Because."]
    assert record.outputs["llm.token_count.completion"]["data"] == [2]


def test_spans_that_call_no_model_are_beside_the_requests(write, read) -> None:
    chain = span(1, attributes={KIND: "CHAIN", "input.value": "x"})
    write([span(), chain, span(2, attributes={"http.route": "/"})])
    records, stats = read(NONE)
    assert (len(records), stats.beside, stats.unreadable, stats.share_usable) == (1, 2, 0, 1.0)


def test_a_failed_call_keeps_no_payload(write, read) -> None:
    write([span(status={"status_code": "ERROR"})])
    (record,), _ = read(NONE)
    assert (record.status, record.inputs) == (500, {})


def test_spans_in_the_form_of_the_protocol_are_read(folder: Path, read) -> None:
    def value(content: Any) -> dict[str, Any]:
        match content:
            case str():
                return {"stringValue": content}
            case int():
                return {"intValue": str(content)}
            case float():
                return {"doubleValue": content}
            case _:
                return {"arrayValue": {"values": [value(cell) for cell in content]}}

    attributes = span()["attributes"]
    start = int(datetime(2026, 3, 8, 6, 59, 58, tzinfo=UTC).timestamp()) * 10**9
    found = {
        "traceId": "5b8e",
        "spanId": "eee1",
        "name": "embed",
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + 5_000_000),
        "attributes": [{"key": name, "value": value(content)} for name, content in attributes.items()],
        "status": {"code": 1},
    }
    folder.mkdir()
    document = {"resourceSpans": [{"scopeSpans": [{"spans": [found, found | {"spanId": "eee2"}]}]}]}
    (folder / "traces.json").write_text(json.dumps(document, indent=1))
    records, _ = read(NONE)
    assert len(records) == 2
    assert records[0].time.second == 58
    assert records[0].timings_ms == {"total": 5.0}
    assert records[0].outputs["embedding"]["data"] == [0.03, -0.77]


def test_a_table_with_a_column_for_each_attribute_is_read(folder: Path, read) -> None:
    row = {
        "name": "embed",
        "span_kind": "EMBEDDING",
        "context.span_id": "s",
        "context.trace_id": "t",
        "start_time": datetime(2026, 3, 8, 6, 59, 58, tzinfo=UTC),
        "status_code": "OK",
        "attributes.input.value": "refund please",
        "attributes.embedding.embeddings": [
            {"embedding.text": "refund please", "embedding.vector": [0.03, -0.77]}
        ],
    }
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist([row]), folder / "spans.parquet")
    (record,), stats = read(NONE)
    assert record.inputs["input.value"]["data"] == ["refund please"]
    assert record.outputs["embedding"]["data"] == [0.03, -0.77]
    assert stats.format == "openinference"


def test_a_vector_with_a_hole_is_not_a_number_there(write, read) -> None:
    vector = {"embedding.embeddings.0.embedding.vector": [1, None]}
    write([span(attributes={KIND: "EMBEDDING", "input.value": "a"} | vector)])
    (record,), _ = read(NONE)
    first, second = record.outputs["embedding"]["data"]
    assert first == 1.0
    assert second != second  # noqa: PLR0124 - only NaN differs from itself
