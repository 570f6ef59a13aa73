"""A stand-in for api.py, and commands run over it."""

import inspect

from click.testing import CliRunner, Result

from batchpaged.cli.commands import cli


class FakeApi:
    """Remembers its calls; `answers` holds what each function gives back, or the error that it raises."""

    def __init__(self):
        self.calls = []
        self.answers = {}

    def __getattr__(self, name):
        def call(*args, **kwargs):
            self.calls.append((name, args, kwargs))
            answer = self.answers[name]
            if isinstance(answer, BaseException):
                raise answer
            return answer(*args, **kwargs) if callable(answer) else answer

        return call


def invoke(*arguments: object) -> Result:
    has_choice = "mix_stderr" in inspect.signature(CliRunner).parameters  # until click 8.1; they are apart since
    runner = CliRunner(mix_stderr=False) if has_choice else CliRunner()
    return runner.invoke(cli, [str(argument) for argument in arguments])
