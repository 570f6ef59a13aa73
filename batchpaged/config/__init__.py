"""The pipeline file: read, checked once at the door, and frozen.

`load_pipeline` reads a file, `parse_pipeline` takes a mapping; both raise one ConfigError that lists every problem.
"""

from batchpaged.config.engine import EngineConfig
from batchpaged.config.evaluate import EvaluateConfig
from batchpaged.config.loading import load_pipeline, parse_pipeline
from batchpaged.config.models import (
    ClusterConfig,
    InputConfig,
    ModelConfig,
    OutputConfig,
    Pipeline,
    PromptConfig,
    StageConfig,
)
from batchpaged.config.sampling import SamplingConfig
from batchpaged.config.schema import pipeline_json_schema
from batchpaged.config.sizes import parse_bytes
from batchpaged.config.structured import StructuredConfig

__all__ = [
    "ClusterConfig",
    "EngineConfig",
    "EvaluateConfig",
    "InputConfig",
    "ModelConfig",
    "OutputConfig",
    "Pipeline",
    "PromptConfig",
    "SamplingConfig",
    "StageConfig",
    "StructuredConfig",
    "load_pipeline",
    "parse_bytes",
    "parse_pipeline",
    "pipeline_json_schema",
]
