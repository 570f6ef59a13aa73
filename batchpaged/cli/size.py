"""The command that sizes a model on a GPU."""

import click

from batchpaged.cli.output import say


class Size(click.ParamType):
    """Bytes with a unit."""

    name = "SIZE"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        from batchpaged.config.sizes import parse_bytes

        try:
            return parse_bytes(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(short_help="Show what a model takes of a GPU's memory, by its config.json.")
@click.argument("model")
@click.option("--gpu-memory", type=Size(), metavar="SIZE", help="Of one GPU, like 80GiB: show what fits there.")
@click.option(
    "--seq-len", type=click.IntRange(min=1), default=2048, show_default=True, help="Tokens of a prompt and its completion."
)
@click.option(
    "--dtype", type=click.Choice(["auto", "float32", "bfloat16", "float16"]), default="auto", help="As model.dtype."
)
@click.option("--kv-dtype", type=click.Choice(["auto", "int8", "fp8"]), default="auto", help="As engine.kv_dtype.")
@click.option(
    "--block-size", type=click.Choice(["8", "16", "32", "64", "128"]), default="16", show_default=True, help="Tokens."
)
@click.option(
    "--gpu-memory-fraction",
    type=click.FloatRange(min=0, min_open=True, max=1),
    default=0.9,
    show_default=True,
    help="As engine.gpu_memory_fraction.",
)
@click.option(
    "--step-memory", type=Size(), metavar="SIZE", default=2**30, help="What a step takes beside weights and cache; 1GiB if not given."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def size(
    model: str,
    gpu_memory: int | None,
    seq_len: int,
    dtype: str,
    kv_dtype: str,
    block_size: str,
    gpu_memory_fraction: float,
    step_memory: int,
    as_json: bool,
) -> None:
    """Show what a model takes of a GPU's memory: weights, KV cache per token, and how many sequences fit.

    MODEL is a config.json, a folder that holds one, an alias, or a hub id whose config.json was downloaded before.
    Weights are not needed, and nothing is downloaded.

    \b
    Examples:
      batchpaged size smollm2-135m-instruct
      batchpaged size docs/examples/configs/llama-3-8b.json --gpu-memory 80GiB --seq-len 8192
      batchpaged size docs/examples/configs/llama-3-70b.json --gpu-memory 192GiB --kv-dtype fp8 --json
    """
    from batchpaged import api
    from batchpaged.cli.text import size_lines

    result = api.size(
        model,
        gpu_memory=gpu_memory,
        seq_len=seq_len,
        dtype=dtype,
        kv_dtype=kv_dtype,
        block_size=int(block_size),
        gpu_memory_fraction=gpu_memory_fraction,
        step_memory=step_memory,
    )
    say(size_lines(result, as_json))
