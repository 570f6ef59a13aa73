"""Virtual time: what a step would take."""

from dataclasses import dataclass

from batchpaged.engine.step import StepPlan
from batchpaged.planning.cost import ModelCost

# A step takes as long as so many prefilled tokens before it computes any: small matrix products on a CPU, and weights
# that are read for few tokens on a GPU, come to about the same.
TOKENS_PER_STEP = 64


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step, as a linear function of what it computes."""

    per_step: float
    per_prefilled_token: float
    per_decoded_token: float
    per_attended_token: float  # for each token computed, each token of its context

    @classmethod
    def of(cls, model: ModelCost, flops_per_second: float) -> "StepTime":
        per_prefilled = model.flops_per_prefill_token / flops_per_second
        return cls(
            per_step=TOKENS_PER_STEP * per_prefilled,
            per_prefilled_token=per_prefilled,
            per_decoded_token=model.flops_per_decode_token / flops_per_second,
            per_attended_token=model.flops_per_context_token / flops_per_second,
        )

    def seconds(self, plan: StepPlan) -> float:
        num_decoded = num_attended = 0
        for step in plan.sequences:
            query = step.query_length
            num_decoded += query == 1
            num_attended += query * step.context_length - query * (query - 1) // 2
        return (
            self.per_step
            + self.per_prefilled_token * (plan.num_tokens - num_decoded)
            + self.per_decoded_token * num_decoded
            + self.per_attended_token * num_attended
        )
