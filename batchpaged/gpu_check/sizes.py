"""How large the measurements are."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ModelShape:
    """Of a Llama-like model."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


@dataclass(frozen=True)
class JobShape:
    """Rows of a RAG data set: a system text, a document, a question."""

    num_documents: int
    num_questions: int  # for each document
    system_tokens: int
    document_tokens: int
    question_tokens: int
    completion_tokens: int
    max_batch_tokens: int
    max_sequences: int
    num_peer_rows: int  # that transformers computes; rates are compared

    @property
    def num_rows(self) -> int:
        return self.num_documents * self.num_questions

    @property
    def prompt_tokens(self) -> int:
        return self.system_tokens + self.document_tokens + self.question_tokens


@dataclass(frozen=True)
class Sizes:
    dtype: torch.dtype
    head_dims: tuple[int, ...]  # attention is checked with these
    nested: tuple[int, tuple[int, ...]]  # the step it is checked with: sequences, blocks of each level's runs
    vocab_size: int  # sampling is checked with
    linears: tuple[tuple[int, int], ...]  # inputs and outputs of linear layers to check
    matmul: int  # rows and columns of square matrices
    copy_bytes: int
    decode: tuple[tuple[int, int], ...]  # (sequences, context length)
    prefill: int  # tokens of one sequence
    shared: tuple[int, int, int]  # groups, sequences in each, tokens of a group's prefix
    model: ModelShape
    job: JobShape
    peers: tuple[str, ...]  # of transformers


FULL = Sizes(
    dtype=torch.bfloat16,
    head_dims=(64, 80, 128),
    nested=(12, (6, 4, 3)),
    vocab_size=50000,
    linears=((4096, 4096), (4096, 28672), (576, 1000)),
    matmul=8192,
    copy_bytes=4 << 30,
    decode=((64, 2048), (64, 8192), (128, 4096)),
    prefill=4096,
    shared=(16, 8, 1024),
    model=ModelShape(32, 4096, 14336, 32, 8, 128256),  # Llama 3 8B
    job=JobShape(32, 16, 200, 1500, 50, 128, 8192, 512, 64),
    peers=("generate", "generate_batch"),
)
# For machines without a GPU: all of it in Triton's interpreter, to see that it runs.
TINY = Sizes(
    dtype=torch.float32,
    head_dims=(80,),
    nested=(4, (2, 1)),
    vocab_size=300,
    linears=((40, 70),),
    matmul=64,
    copy_bytes=1 << 16,
    decode=((2, 40),),
    prefill=40,
    shared=(2, 2, 32),
    model=ModelShape(1, 32, 48, 2, 1, 64),
    job=JobShape(2, 2, 3, 14, 3, 2, 64, 4, 2),
    peers=("generate",),  # the other takes half a minute to start on a CPU
)
