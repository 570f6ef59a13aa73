"""Workers whose memory holds small steps only; a module of its own, because worker processes import it."""

MOST_TOKENS = 40


def run_short() -> None:
    from batchpaged.engine.model_runner import ModelRunner

    def start(self, plan):
        result = ModelRunner.kept(self, plan)  # all of it is thrown away
        if plan.num_tokens > MOST_TOKENS:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        return result

    ModelRunner.kept, ModelRunner._start = ModelRunner._start, start


def run_long() -> None:
    from batchpaged.engine.model_runner import ModelRunner

    ModelRunner._start = ModelRunner.kept
    del ModelRunner.kept
