"""Data sets made to have a cause of lost reuse, and their diagnosis."""

import random
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tiny_runs
from transformers import AutoTokenizer

from batchpaged.config import Pipeline, parse_pipeline
from batchpaged.dataset.prompts import PromptBuilder
from batchpaged.dataset.source import open_source
from batchpaged.planning.diagnosis.diagnose import diagnose
from batchpaged.planning.diagnosis.findings import Diagnosis

SYSTEM = "You answer questions from the given documents. Reply with the shortest phrase that answers."
TEMPLATE = "Documents:\n{{ contexts | join('\n\n') }}\n\nQuestion: {{ question }}"
SECRET = "zyzzyva"  # stands in every row
NUM_GROUPS, ROWS_PER_GROUP = 6, 5


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(tiny_runs.model())


def documents(group: int) -> list[str]:
    number = random.Random(group).random
    return [f"Document {SECRET} {group}-{i} tells of {number()} and {number()}. It ends with {number()}." for i in range(3)]


def rows() -> list[dict[str, Any]]:
    """Shuffled; rows of a group have the same documents in the same order."""
    made = [
        {"group": g, "contexts": documents(g), "question": f"{SECRET} What is {g * 31 + i * 7}?"}
        for g in range(NUM_GROUPS)
        for i in range(ROWS_PER_GROUP)
    ]
    random.Random(0).shuffle(made)
    return [{"id": f"row-{i}", **row} for i, row in enumerate(made)]


def as_text(row: dict[str, Any], system: str = SYSTEM) -> str:
    """What TEMPLATE makes of a row without a chat template."""
    documents = "\n\n".join(row["contexts"])
    return f"{system}\n\nDocuments:\n{documents}\n\nQuestion: {row['question']}"


def as_messages(row: dict[str, Any], system: str = SYSTEM) -> list[dict[str, str]]:
    _, user = as_text(row).split("\n\n", 1)
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def templated(**keys: Any) -> dict[str, Any]:
    return {"system": SYSTEM, "user": TEMPLATE, "chat_template": "none", **keys}


def pipeline(path: str, prompt: dict[str, Any], **sections: Any) -> Pipeline:
    model = {"id": str(tiny_runs.model()), "max_model_len": 4096}
    sections = {"input": {"path": path, "id_column": "id"}, "model": model, "output": {"path": "runs/x"}} | sections
    return parse_pipeline({"prompt": prompt, **sections})


def diagnose_pipeline(made: Pipeline) -> Diagnosis:
    builder = PromptBuilder(made.prompt, tokenizer(), made.model.max_model_len, made.sampling.max_tokens)
    return diagnose(made, open_source(made.input), builder, None)


def diagnose_rows(table: list[dict[str, Any]], prompt: dict[str, Any], **sections: Any) -> Diagnosis:
    path = tiny_runs.new_path("rows.parquet")
    pq.write_table(pa.Table.from_pylist(table), path)
    return diagnose_pipeline(pipeline(str(path), prompt, **sections))


# --- counted another way ---


def count(texts: list[str]) -> tuple[int, int]:
    """-> (prompt tokens, nodes of their prefix tree)."""
    prompts = [tokenizer()(text)["input_ids"] for text in texts]
    return count_ids(prompts)


def count_chats(chats: list[list[dict[str, str]]]) -> tuple[int, int]:
    texts = [tokenizer().apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]
    return count_ids([tokenizer()(text, add_special_tokens=False)["input_ids"] for text in texts])


def count_ids(prompts: list[list[int]]) -> tuple[int, int]:
    tree: dict[int, dict] = {}
    num_nodes = 0
    for prompt in prompts:
        node = tree
        for token in prompt:
            if token not in node:
                node[token] = {}
                num_nodes += 1
            node = node[token]
    return sum(map(len, prompts)), num_nodes
