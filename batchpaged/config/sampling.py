"""`sampling`: how the next token is chosen, and when a completion ends."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from batchpaged.config.section import AtLeastOne, Section, Text, tuple_of_any
from batchpaged.config.structured import StructuredConfig

MAX_LOGPROBS = 20  # most likely tokens of which the output can have log-probabilities
MAX_SEED = 2**63 - 1  # fits a signed 64-bit column

TokenId = Annotated[int, Field(ge=0)]
Texts = Annotated[tuple[Text, ...], BeforeValidator(tuple_of_any, json_schema_input_type=Text | list[Text])]
TokenIds = Annotated[
    tuple[TokenId, ...], BeforeValidator(tuple_of_any, json_schema_input_type=TokenId | list[TokenId])
]


class SamplingConfig(Section):
    """How the next token is chosen, and when a completion ends."""

    max_tokens: AtLeastOne = Field(32, description="Most tokens in a completion")
    temperature: Annotated[float, Field(ge=0)] = Field(
        0.0, description="0: greedy, the most likely token; the higher, the more random"
    )
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Only the most likely tokens whose probabilities sum up to this; 1: all"
    )
    top_k: AtLeastOne | None = Field(None, description="Only this many of the most likely tokens; null: all")
    min_p: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="Only tokens with at least this share of the most likely one's probability; 0: all"
    )
    repetition_penalty: Annotated[float, Field(gt=0)] = Field(
        1.0, description="Above 1, tokens already in prompt or completion become less likely; 1: off"
    )
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = Field(
        0, description="Seed of the run; each row's own follows from it and the row's id"
    )
    stop: Texts = Field((), description="Strings that end a completion and are not part of it; one or a list")
    stop_token_ids: TokenIds = Field((), description="Token ids that end a completion besides the model's own")
    ignore_eos: bool = Field(False, description="Whether to go on to max_tokens past the model's end token")
    structured: StructuredConfig | None = Field(
        None, description="What a completion must be, by JSON schema, regular expression or choices; null: anything"
    )
    n: AtLeastOne = Field(1, description="Completions per row; above 1 the output has lists of them")
    best_of: AtLeastOne | None = Field(
        None, description="Completions sampled per row, of which the n with the highest mean log-probability are kept; null: n"
    )
    beam_width: Annotated[int, Field(ge=2)] | None = Field(
        None, description="Beam search with so many beams, of which the n best are kept; null: none"
    )
    length_penalty: float = Field(
        1.0, description="A beam's score is its log-probability over its length to the power of this; above 0: longer ones"
    )
    early_stopping: bool | Literal["never"] = Field(
        False, description="A beam search ends once beam_width beams have ended (true), or none is likely (false), or able to win"
    )
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = Field(
        None,
        description="Log-probabilities of completion tokens in the output, and those of this many of the most likely ones; "
        "null: none",
    )
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = Field(
        None, description="The same of prompt tokens; null: none"
    )

    @property
    def num_sequences(self) -> int:
        """Sequences that are generated for a row."""
        return self.beam_width or (self.best_of or self.n if self.temperature > 0 else 1)
