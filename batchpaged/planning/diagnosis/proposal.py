"""What a cause's module gives: the rows as they would be without it."""

from dataclasses import dataclass

from batchpaged.planning.diagnosis.examination import Version
from batchpaged.planning.diagnosis.findings import Cause

# A finding has to cost this share of the prompt tokens: less is lost in how texts are cut into tokens.
WORTH_SAYING = 0.005


@dataclass(frozen=True)
class Proposal:
    cause: Cause
    version: Version  # the rows without the cause
    what: str
    way_out: str
    subject: str = ""  # tells apart proposals of one cause that go together
    min_growth: float = 0.0  # tokens that the rows concerned must share more, on average
