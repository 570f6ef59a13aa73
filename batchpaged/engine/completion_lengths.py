"""How long completions are, learned during the run."""


class CompletionLengths:
    """Running mean of completion lengths: the guess for how far a running sequence will grow."""

    def __init__(self) -> None:
        self._num_tokens = 0
        self._num_completions = 0

    def add(self, num_tokens: int) -> None:
        self._num_tokens += num_tokens
        self._num_completions += 1

    def expected(self, max_tokens: int) -> int:
        """Tokens of a completion; half of max_tokens until one has finished."""
        if not self._num_completions:
            return max_tokens // 2
        return -(-self._num_tokens // self._num_completions)
