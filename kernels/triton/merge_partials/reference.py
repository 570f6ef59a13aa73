"""The same in torch operations, one token at a time, in float32."""

import torch


def merge_partials(
    partial_output: torch.Tensor,
    partial_lse: torch.Tensor,
    tokens: torch.Tensor,
    starts: torch.Tensor,
    sinks: torch.Tensor | None,
    output: torch.Tensor,
) -> None:
    """Shapes as in launch.py."""
    for token, start, end in zip(tokens.tolist(), starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        logits = partial_lse[start:end]
        if sinks is not None:
            logits = torch.cat([logits, sinks.float()[None]])
        weights = logits.softmax(0).nan_to_num(0.0)[: end - start]  # of a token that saw nothing, all are 0
        parts = torch.where(partial_lse[start:end, :, None] == float("-inf"), 0.0, partial_output[start:end])
        output[token] = (weights[:, :, None] * parts).sum(0).to(output.dtype)
