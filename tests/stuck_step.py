"""Workers whose steps do not come back; a module of its own, because worker processes import it."""

SECONDS = 4.0


def get_stuck() -> None:
    import time

    from batchpaged.engine.model_runner import ModelRunner

    def start(self, plan):
        time.sleep(SECONDS)
        return ModelRunner.kept(self, plan)

    ModelRunner.kept, ModelRunner._start = ModelRunner._start, start


def get_on() -> None:
    from batchpaged.engine.model_runner import ModelRunner

    ModelRunner._start = ModelRunner.kept
    del ModelRunner.kept
