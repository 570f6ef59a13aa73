"""Workers whose steps do not come back; a module of its own, because worker processes import it."""

SECONDS = 4.0


def get_stuck() -> None:
    import time

    from batchpaged.engine.model_runner import ModelRunner

    def execute(self, plan):
        time.sleep(SECONDS)
        return ModelRunner.kept(self, plan)

    ModelRunner.kept, ModelRunner._execute = ModelRunner._execute, execute


def get_on() -> None:
    from batchpaged.engine.model_runner import ModelRunner

    ModelRunner._execute = ModelRunner.kept
    del ModelRunner.kept
