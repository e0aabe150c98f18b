"""What `[serving]` in a settings file says about servers."""

from dataclasses import field
from typing import Literal

from mlx_platform.core.clock import SPAN
from mlx_platform.core.tables import setting
from mlx_platform.core.values import frozen


@frozen
class AnswerCacheSettings:
    """What a server remembers of its answers. Passwords and keys are in the variables that `_env` names."""

    backend: Literal["off", "memory", "redis"] = "off"
    max_bytes: int = setting(64 * 1024 * 1024, ge=64 * 1024, description="memory of all answers")
    max_value_bytes: int = setting(1024 * 1024, ge=1024, description="a larger answer is not kept")
    prepared_bytes: int = setting(0, ge=0, description="memory for prepared inputs; 0 keeps none")
    tolerance: float = setting(0.0, ge=0, le=1e6, description="floats are rounded to multiples of it")
    min_hit_rate: float = setting(0.01, ge=0, le=1, description="below it most requests go past the cache")
    tenant_header: str = setting("x-tenant-id", pattern="[A-Za-z0-9-]{1,64}")
    redis_url: str = ""
    redis_password_env: str = ""
    redis_timeout_ms: float = setting(20.0, gt=0, le=1000)
    redis_ttl_s: int = setting(86_400, ge=1, description="seconds that an answer stays in Redis")
    secret_env: str = ""


_NEGATIONS = ("not", "no", "never", "none", "neither", "nor", "without", "cannot", "n't")


@frozen
class SemanticCacheSettings:
    """Answers for texts that mean the same; `models` are patterns of the models that this is done for.

    Texts that differ in one of the `telling` words, or in a number, never mean the same.
    """

    models: tuple[str, ...] = ()
    model: str = ""
    column: str = ""
    similarity: float = setting(0.95, gt=0, le=1, description="cosine from which two texts mean the same")
    max_entries: int = setting(10_000, ge=1, le=1_000_000)
    timeout_ms: float = setting(100.0, gt=0, le=10_000, description="the longest wait for a lookup")
    check: float = setting(0.01, ge=0, le=1, description="share of hits that the model answers as well")
    min_agreement: float = setting(0.95, ge=0, le=1, description="of those, or there are no hits any more")
    telling: tuple[str, ...] = _NEGATIONS


@frozen
class DegradeSettings:
    """What answers when the model's device fails: other devices, then another version, then a fixed answer.

    `devices` are tried in order, but for those that this ONNX Runtime does not know; `fallback`
    is a reference such as `digits@light`; `answer` is what `/predict` then says of every row.
    """

    devices: tuple[str, ...] = ("cuda", "cpu")
    fallback: str = ""
    answer: dict[str, object] = field(default_factory=dict)
    probe_s: float = setting(5.0, gt=0, le=3600, description="until a lost device is tried again")


@frozen
class ShadowSettings:
    """Copies of requests for the candidate of a rollout; what does not fit is dropped and counted."""

    max_copies: int = setting(256, ge=1, le=100_000, description="that wait")
    max_bytes: int = setting(64 * 1024 * 1024, ge=1024, description="memory of those that wait or run")
    max_in_flight: int = setting(2, ge=1, le=64, description="that the candidate works on at a time")


@frozen
class FeedbackSettings:
    """What a server takes in `POST /feedback`, and for how many requests it knows who answered them."""

    max_entries: int = setting(1000, ge=1, le=100_000, description="in one request")
    max_body_bytes: int = setting(1024 * 1024, ge=1024, le=64 * 1024 * 1024)
    remembered: int = setting(100_000, ge=1, le=10_000_000, description="requests of a rollout")
    disk_bytes: int = setting(1024**3, ge=1024 * 1024, description="of what is kept beside the traffic log")


@frozen
class LiveDriftSettings:
    """How the server watches its requests beside the baseline of the package."""

    enabled: bool = True
    window: str = setting("1h", pattern=SPAN, description="such as 15m or 1h")
    requests_per_s: int = setting(100, ge=1, le=100_000, description="that are counted at most")
    cpu_share: float = setting(0.01, gt=0, le=1, description="of a core that it takes at most")


@frozen
class ServingSettings:
    host: str = "127.0.0.1"
    port: int = setting(0, ge=0, le=65535, description="0 takes a free port")
    admin_host: str = "127.0.0.1"
    admin_port: int = setting(0, ge=0, le=65535, description="0 takes a free port")
    grpc_port: int = setting(0, ge=-1, le=65535, description="0 takes a free port, -1 leaves gRPC out")
    max_batch_size: int | Literal["auto"] = setting(32, ge=1, le=65536, description="rows")
    max_queue_delay_ms: float = setting(0.0, ge=0, le=10_000)
    max_queue_rows: int = setting(1024, ge=1)
    max_queue_bytes: int = setting(1024**3, ge=1024, description="of inputs that wait")
    max_rows: int = setting(1024, ge=1, description="rows in one request")
    max_body_bytes: int = setting(16 * 1024 * 1024, ge=1024)
    max_header_bytes: int = setting(16 * 1024, ge=1024)
    max_connections: int = setting(512, ge=1)
    non_finite: Literal["refuse", "null"] = "refuse"
    request_timeout_ms: float = setting(2000.0, gt=0)
    receive_timeout_s: float = setting(10.0, gt=0)
    drain_delay_s: float = setting(0.0, ge=0)
    drain_timeout_s: float = setting(30.0, gt=0)
    keep_warm_s: float = setting(600.0, ge=0, description="that a replaced version stays in memory")
    intra_op_threads: int = setting(0, ge=0, description="0 takes half of the cores")
    pipeline_threads: int = setting(2, ge=1, le=64, description="for steps such as tokenizing and images")
    pipeline_processes: int = setting(0, ge=0, le=64, description="instead, for steps that hold Python")
    workers: int = setting(
        0, ge=0, le=64, description="runs at a time; 0 takes as many as there are cores for"
    )
    warmup: str = setting("", description="JSONL of rows that are answered before the server is ready")
    processes: int = setting(
        0, ge=0, le=256, description="that serve side by side; 0 serves without any other"
    )
    devices: tuple[str, ...] = ()
    memory_bytes: int = setting(0, ge=0, description="of a model's runs; 0 takes what is free")
    memory_headroom: float = setting(0.15, ge=0, le=0.9, description="the share of it that stays free")
    admin_token_env: str = "MLX_ADMIN_TOKEN"  # noqa: S105 - the name of a variable
    trace_endpoint: str = setting("", pattern=r"(https?://\S+)?", description="of an OTLP/HTTP collector")
    trace_sample: float = setting(1.0, ge=0, le=1, description="share of requests that begin a trace")
    server_timing: bool = False
    log_format: Literal["text", "json"] = "text"
    traffic: str = setting("", description="folder of the traffic log; empty logs nothing")
    traffic_sample: float = setting(1.0, ge=0, le=1)
    traffic_stages: float = setting(0.01, ge=0, le=1, description="share that is logged with its tensors")
    traffic_queue_bytes: int = setting(64 * 1024 * 1024, ge=1024)
    traffic_disk_bytes: int = setting(10 * 1024**3, ge=1024 * 1024)
    degrade: DegradeSettings = DegradeSettings()
    shadow: ShadowSettings = ShadowSettings()
    feedback: FeedbackSettings = FeedbackSettings()
    cache: AnswerCacheSettings = AnswerCacheSettings()
    semantic_cache: SemanticCacheSettings = SemanticCacheSettings()
    drift: LiveDriftSettings = LiveDriftSettings()
