"""Each cause is found in rows made to have it, with the tokens it costs, and not in rows without it."""

import json
import random
import re

from planning import diagnosed
import pytest
import tiny_runs
from planning.diagnosed import SYSTEM, TEMPLATE, as_messages, as_text, count, count_chats, diagnose_rows, rows, templated

from batchpaged.config import load_pipeline
from batchpaged.planning.diagnosis import sample



def check(diagnosis, cause, now, then, num_rows=None):
    """`now` and `then`: (prompt tokens, unique tokens) counted another way."""
    [finding] = diagnosis.findings
    assert finding.cause == cause and finding.after == ()
    assert (diagnosis.num_prompt_tokens, diagnosis.num_unique_tokens) == now
    assert finding.num_tokens == now[1] - then[1] > 0
    assert finding.hit_rate == pytest.approx(1 - then[1] / then[0])
    assert diagnosis.hit_rate == pytest.approx(1 - now[1] / now[0])
    assert num_rows is None or finding.num_rows == num_rows
    assert (diagnosis.num_rows, diagnosis.num_rows_total, diagnosis.is_sample) == (30, 30, False)
    assert not re.search(diagnosed.SECRET, repr(diagnosis))
    return finding


def groups_of(finding):
    by_id = {row["id"]: row["group"] for row in rows()}
    return [by_id[row_id] for row_id in finding.example_rows]


# --- none ---


@pytest.mark.parametrize(
    "prompt",
    [templated(), {"system": SYSTEM, "user": TEMPLATE}, {"text_column": "text"}, {"messages_column": "messages"}],
    ids=["templates", "chat template", "text", "messages"],
)
def test_rows_without_a_cause(prompt):
    table = [{**row, "text": as_text(row), "messages": as_messages(row)} for row in rows()]
    diagnosis = diagnose_rows(table, prompt)
    assert diagnosis.findings == () and diagnosis.num_rows == 30
    assert diagnosis.num_prompt_tokens is diagnosis.hit_rate is None  # nothing suspected, nothing counted


@pytest.mark.parametrize("name", ["rag_eval", "few_shot", "conversations", "sampled_questions"])
def test_the_sample_pipelines_have_none(name):
    pipeline = load_pipeline(f"pipelines/{name}.yaml", [f"model.id={tiny_runs.model()}", "model.max_model_len=20000"])
    assert diagnosed.diagnose_pipeline(pipeline).findings == ()


def test_rows_that_share_nothing_and_a_single_row():
    table = [{"id": str(i), "text": f"{chr(65 + i)} is what row {i} begins with"} for i in range(20)]
    assert diagnose_rows(table, {"text_column": "text"}).findings == ()
    assert diagnose_rows(table[:1], {"text_column": "text"}).findings == ()
    assert diagnose_rows([{"id": "a", "text": " "}], {"text_column": "text"}).findings == ()


# --- a varying field ---


@pytest.mark.parametrize(
    ("prompt", "before"),
    [
        (templated(user="At {{ when }}:\n" + TEMPLATE), SYSTEM + "\n\nAt {}:\n"),
        (templated(system="It is {{ when }}. " + SYSTEM), "It is {}. " + SYSTEM + "\n\n"),
        (templated(user="{% if when %}At {{ when }}:\n{% endif %}" + TEMPLATE), SYSTEM + "\n\nAt {}:\n"),
    ],
    ids=["user", "system", "condition"],
)
def test_a_field_before_the_documents(prompt, before):
    table = [{**row, "when": f"2026-11-{i % 28 + 1:02} {i:02}:15"} for i, row in enumerate(rows())]
    now = [before.format(row["when"]) + as_text(row).split("\n\n", 1)[1] for row in table]
    then = [f"{before.format('')}{as_text(row).split(chr(10) * 2, 1)[1]}\n{row['when']}" for row in table]
    finding = check(diagnose_rows(table, prompt), "varying_field", count(now), count(then), num_rows=30)
    assert finding.way_out.startswith("move {{ when }} behind {{ contexts | join(")
    assert len(set(groups_of(finding))) == 1 and len(finding.example_rows) == 2


def test_several_fields_and_a_constant_one():
    table = [{**row, "user": "Ann Bob Cay Dan Eve".split()[i % 5], "day": f"day {i}", "site": "here"}
             for i, row in enumerate(rows())]  # fmt: skip
    prompt = templated(user="{{ site }} {{ user }} {{ day }}\n" + TEMPLATE)
    body = [as_text(row).split("\n\n", 1)[1] for row in table]
    now = [f"{SYSTEM}\n\nhere {row['user']} {row['day']}\n{text}" for row, text in zip(table, body, strict=True)]
    then = [f"{SYSTEM}\n\nhere  \n{text}\n{row['user']}\n{row['day']}" for row, text in zip(table, body, strict=True)]
    finding = check(diagnose_rows(table, prompt), "varying_field", count(now), count(then))
    assert finding.what.startswith("{{ user }} and {{ day }} differ from row to row and stand before {{ contexts")


def test_a_field_inside_a_loop():
    table = [{**row, "docs": [{"text": text, "score": hash((row["id"], i)) % 10**6} for i, text in enumerate(row["contexts"])]}
             for row in rows()]  # fmt: skip
    prompt = templated(user="{% for d in docs %}({{ d.score }}) {{ d.text }}\n{% endfor %}{{ question }}")
    now = ["".join(f"({d['score']}) {d['text']}\n" for d in row["docs"]) + row["question"] for row in table]
    then = ["".join(f"() {d['text']}\n" for d in row["docs"]) + row["question"] for row in table]
    then = [f"{text}\n{''.join(str(d['score']) for d in row['docs'])}" for text, row in zip(then, table, strict=True)]
    now, then = ([f"{SYSTEM}\n\n{text}" for text in texts] for texts in (now, then))
    finding = check(diagnose_rows(table, prompt), "varying_field", count(now), count(then))
    assert finding.way_out == "move {{ d.score }} behind {{ d.text }}"


def test_a_question_before_long_instructions_but_not_before_a_short_line():
    long = "These are the rules by which every answer has to be given, whatever was asked. " * 3
    table = [{"id": row["id"], "question": row["question"]} for row in rows()]
    now = [f"{row['question']}\n{long}" for row in table]
    then = [f"\n{long}\n{row['question']}" for row in table]
    diagnosis = diagnose_rows(table, {"user": "{{ question }}\n" + long, "chat_template": "none"})
    finding = check(diagnosis, "varying_field", count(now), count(then))
    assert finding.way_out == "move {{ question }} behind the fixed text that follows"
    assert diagnose_rows(rows(), templated(user=TEMPLATE + "\nAnswer in a word:")).findings == ()


@pytest.mark.parametrize("cut", ["line", "sentence"])
def test_a_field_inside_texts(cut):
    end = {"line": "\n", "sentence": " "}[cut]
    texts = [(f"It is {i:02} o'clock.", as_text(row)) for i, row in enumerate(rows())]
    table = [{"id": row["id"], "text": f"{when}{end}{text}"} for row, (when, text) in zip(rows(), texts, strict=True)]
    now, then = count([row["text"] for row in table]), count([f"{text}\n{when}" for when, text in texts])
    finding = check(diagnose_rows(table, {"text_column": "text"}), "varying_field", now, then)
    assert re.search(rf"({cut}|line) 1 of text differs", finding.what)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_field_inside_messages(as_json):
    def chats(system, user_end):
        made = [as_messages(row, system(i) + SYSTEM) for i, row in enumerate(rows())]
        return [[first, {**last, "content": last["content"] + user_end(i)}] for i, (first, last) in enumerate(made)]

    now = chats(lambda i: f"Row {i:02}.\n", lambda i: "")
    then = chats(lambda i: "", lambda i: f"\nRow {i:02}.")
    cells = [json.dumps(chat) if as_json else chat for chat in now]
    table = [{"id": row["id"], "chat": cell} for row, cell in zip(rows(), cells, strict=True)]
    diagnosis = diagnose_rows(table, {"messages_column": "chat"})
    finding = check(diagnosis, "varying_field", count_chats(now), count_chats(then))
    assert "1 of message 1, system differs" in finding.what




def test_a_role_is_shown_only_if_it_is_a_known_one():
    chats = [as_messages(row, f"Row {i:02}.\n{SYSTEM}") for i, row in enumerate(rows())]
    table = [{"id": f"{i}", "chat": [{**first, "role": "zyzzyva"}, last]} for i, (first, last) in enumerate(chats)]
    [finding] = diagnose_rows(table, {"messages_column": "chat"}).findings
    assert "1 of message 1, (other) differs" in finding.what and diagnosed.SECRET not in repr(finding)


# --- the order of documents ---


@pytest.mark.parametrize("as_structs", [False, True])
def test_documents_in_different_orders(as_structs):
    shuffle = random.Random(3).shuffle
    table = rows()
    for row in table:
        shuffle(row["contexts"])
    now = count([as_text(row) for row in table])
    one_order = count([as_text({**row, "contexts": sorted(row["contexts"])}) for row in table])
    assert one_order == count([as_text({**row, "contexts": sorted(row["contexts"])[::-1]}) for row in table])
    prompt = templated()
    if as_structs:
        table = [{**row, "contexts": [{"body": text} for text in row["contexts"]]} for row in table]
        prompt = templated(user=TEMPLATE.replace("| join", "| map(attribute='body') | join"))
    finding = check(diagnose_rows(table, prompt), "context_order", now, one_order)
    assert finding.way_out.startswith("set prompt.reorder: contexts")
    assert len(set(groups_of(finding))) == 1


# --- white space and Unicode ---

SPELLINGS = {
    "non-breaking or other special spaces": lambda text: text.replace(" tells ", "\u00a0tells\u2009"),
    "invisible characters": lambda text: text.replace("tells", "te\u200blls"),
    "line ends (CRLF)": lambda text: text.replace("\n", "\r\n"),
    "Unicode forms (NFC, NFKC)": lambda text: text.replace("é", "e\u0301"),
    "trailing, leading or doubled white space": lambda text: text.replace(" tells", "  tells") + " ",
}


def spelt(respell, num=2):
    """Two rows of each group have their documents written another way."""
    clean = [{**row, "contexts": [f"Café\n{text}" for text in row["contexts"]]} for row in rows()]
    seen = {}
    written = []
    for row in clean:
        seen[row["group"]] = seen.get(row["group"], 0) + 1
        is_other = seen[row["group"]] <= num
        written.append({**row, "contexts": [respell(text) if is_other else text for text in row["contexts"]]})
    return clean, written


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("source", ["templates", "text", "messages"])
def test_values_that_are_written_in_two_ways(name, source):
    clean, table = spelt(SPELLINGS[name])
    table = [{**row, "text": as_text(row), "chat": as_messages(row)} for row in table]
    prompts = {"templates": templated(), "text": {"text_column": "text"}, "messages": {"messages_column": "chat"}}
    if source == "messages":
        now, then = (count_chats([as_messages(row) for row in data]) for data in (table, clean))
    else:
        now, then = (count([as_text(row) for row in data]) for data in (table, clean))
    finding = check(diagnose_rows(table, prompts[source]), "whitespace", now, then)
    assert name in finding.what and "normalise" in finding.way_out
    assert {"templates": "contexts", "text": "text", "messages": "chat"}[source] in finding.what


def test_different_words_are_no_white_space():
    _, table = spelt(lambda text: text.replace("tells", "speaks"))
    assert "whitespace" not in {finding.cause for finding in diagnose_rows(table, templated()).findings}


# --- template variants ---


def variant(i):
    return SYSTEM if i % 3 else SYSTEM.replace("shortest phrase", "short phrase")


@pytest.mark.parametrize("source", ["text", "messages", "templates"])
def test_instructions_in_two_ways(source):
    columns = [{"text": as_text(row, variant(i)), "chat": as_messages(row, variant(i)), "system": variant(i)}
               for i, row in enumerate(rows())]  # fmt: skip
    table = [{**row, **more} for row, more in zip(rows(), columns, strict=True)]
    prompts = {"text": {"text_column": "text"}, "messages": {"messages_column": "chat"}}
    prompts["templates"] = templated(system="{{ system }}")
    if source == "messages":
        now, then = count_chats([row["chat"] for row in table]), count_chats([as_messages(row) for row in rows()])
    else:
        now, then = count([row["text"] for row in table]), count([as_text(row) for row in rows()])
    finding = check(diagnose_rows(table, prompts[source]), "template_variants", now, then)
    expected = {"text": "line 1 of text in 2 ways", "messages": "message 1, system in 2 ways", "templates": "system in 2 ways"}
    assert expected[source] in finding.what


def test_two_versions_of_a_document_are_no_variants():
    """What follows them, the questions, is not shared: nothing but the versions themselves would be saved."""
    long = " ".join(f"Sentence {i} of the handbook says something of some length." for i in range(12))
    table = [{"id": str(i), "document": long.replace("handbook", "guide" if i % 2 else "handbook"), "question": f"{i * 37} {i}?"} for i in range(20)]
    assert diagnose_rows(table, {"user": "{{ document }}\n{{ question }}", "chat_template": "none"}).findings == ()


@pytest.mark.parametrize("closing", ["", "\nAnswer with a year.", "\nAnswer in the words of the document, and be as short as you can be."])
def test_the_same_few_questions_of_every_document_are_no_variants(closing):
    """Nor do they vary before something long: a line about how to answer has its place at the end."""
    questions = [f"In which year was the {thing} built that it tells of?" for thing in ("mill", "tower", "bridge", "dam")]
    table = [{"id": f"{g}-{i}", "contexts": diagnosed.documents(g), "question": question}
             for g in range(12) for i, question in enumerate(questions)]  # fmt: skip
    diagnosis = diagnose_rows(table, templated(user=TEMPLATE + closing))
    assert "template_variants" not in {finding.cause for finding in diagnosis.findings}


# --- what is counted without trying anything ---


def test_a_prefix_shorter_than_a_block():
    table = [{"id": str(i), "text": f"Answer: {random.Random(i).random()} {i}"} for i in range(30)]
    _, num_unique = count([row["text"] for row in table])
    diagnosis = diagnose_rows(table, {"text_column": "text"})
    [finding] = diagnosis.findings
    assert (finding.cause, finding.num_tokens, finding.num_rows) == ("short_prefix", 0, 30)
    assert finding.num_tokens_elsewhere == diagnosis.num_prompt_tokens - num_unique
    assert finding.hit_rate == diagnosis.hit_rate > 0 and finding.hit_rate_elsewhere == 0
    assert diagnose_rows(table, {"text_column": "text"}, engine={"block_size": 8}).findings == ()


def test_token_ids_have_prefixes_too():
    table = [{"id": str(i), "ids": [5, 6, 7, *random.Random(i).choices(range(10, 200), k=20)]} for i in range(30)]
    [finding] = diagnose_rows(table, {"token_ids_column": "ids"}).findings
    assert finding.cause == "short_prefix"
    assert finding.num_tokens_elsewhere == 30 * 23 - diagnosed.count_ids([row["ids"] for row in table])[1]
    shared = [{"id": str(i), "ids": [*range(100), i + 100]} for i in range(30)]
    assert diagnose_rows(shared, {"token_ids_column": "ids"}).findings == ()


def test_the_prefix_cache_is_off():
    now = count([as_text(row) for row in rows()])
    [finding] = diagnose_rows(rows(), templated(), engine={"prefix_cache": False}).findings
    assert finding.cause == "prefix_cache_off" and finding.num_tokens == now[0] - now[1]
    assert finding.hit_rate == pytest.approx(1 - now[1] / now[0])


# --- several causes ---


def test_a_cause_that_another_one_hides():
    shuffle = random.Random(3).shuffle
    table = [{**row, "when": f"{i:02} o'clock"} for i, row in enumerate(rows())]
    for row in table:
        shuffle(row["contexts"])
    diagnosis = diagnose_rows(table, templated(user="{{ when }}\n" + TEMPLATE))
    first, second = diagnosis.findings
    assert (first.cause, first.after) == ("varying_field", ())
    assert (second.cause, second.after) == ("context_order", ("varying_field",))
    body = [as_text(row).split("\n\n", 1)[1] for row in table]
    now = count([f"{SYSTEM}\n\n{row['when']}\n{text}" for row, text in zip(table, body, strict=True)])
    moved = count([f"{SYSTEM}\n\n\n{text}\n{row['when']}" for row, text in zip(table, body, strict=True)])
    body = [as_text({**row, "contexts": sorted(row["contexts"])}).split("\n\n", 1)[1] for row in table]
    both = count([f"{SYSTEM}\n\n\n{text}\n{row['when']}" for row, text in zip(table, body, strict=True)])
    assert first.num_tokens == now[1] - moved[1] and second.num_tokens == moved[1] - both[1]
    assert second.hit_rate == pytest.approx(1 - both[1] / both[0])


def test_what_one_cause_explains_is_not_told_twice():
    """A doubled space in an instruction makes it vary, and makes it a variant: it is white space."""
    table = [{**row, "system": SYSTEM if i % 3 else SYSTEM.replace("from", " from")} for i, row in enumerate(rows())]
    [finding] = diagnose_rows(table, templated(system="{{ system }}")).findings
    assert finding.cause == "whitespace"


def test_rows_that_fail_do_not_count():
    table = [{**row, "when": None if i == 4 else f"{i:02}:15"} for i, row in enumerate(rows())]
    diagnosis = diagnose_rows(table, templated(user="{{ when }}\n" + TEMPLATE))
    [finding] = diagnosis.findings
    assert finding.cause == "varying_field" and "row-4" not in finding.example_rows
    assert diagnosis.num_rows == 30 and finding.num_rows <= 29


# --- samples ---


def test_a_large_data_set_is_sampled_by_whole_groups(monkeypatch):
    monkeypatch.setattr(sample, "MAX_ROWS", 60)
    table = []
    for g in range(60):
        contexts = diagnosed.documents(g)
        table += [{"id": f"{g}-{i}", "contexts": contexts, "question": f"What is {i * 31}?"} for i in range(5)]
    random.Random(1).shuffle(table)
    for i, row in enumerate(table):
        row["when"] = f"{i:04} o'clock"
    first = diagnose_rows(table, templated(user="{{ when }}\n" + TEMPLATE))
    assert first == diagnose_rows(table, templated(user="{{ when }}\n" + TEMPLATE))
    assert first.is_sample and 20 <= first.num_rows <= 60 and first.num_rows_total == 300
    assert first.num_rows % 5 == 0  # no group was torn apart
    [finding] = first.findings
    whole = 1 - 1 / 5  # of the documents, which are most of a prompt
    assert finding.hit_rate == pytest.approx(whole, abs=0.1)


def test_token_ids_are_taken_from_the_start(monkeypatch):
    monkeypatch.setattr(sample, "MAX_ROWS", 20)
    table = [{"id": str(i), "ids": [5, 6, 7, *random.Random(i).choices(range(10, 200), k=20)]} for i in range(30)]
    diagnosis = diagnose_rows(table, {"token_ids_column": "ids"})
    assert (diagnosis.num_rows, diagnosis.num_rows_total) == (20, 30)


def test_no_group_fills_the_sample(monkeypatch):
    monkeypatch.setattr(sample, "MAX_ROWS", 40)
    monkeypatch.setattr(sample, "MAX_GROUP", 10)
    table = [
        {"id": f"{i}", "contexts": diagnosed.documents(i % 30), "question": f"What is {i * 31}?"} for i in range(600)
    ]
    diagnosis = diagnose_rows(table, templated())
    assert 20 <= diagnosis.num_rows <= 40 and diagnosis.num_rows % 10 == 0 and diagnosis.findings == ()
