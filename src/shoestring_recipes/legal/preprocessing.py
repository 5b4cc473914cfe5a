"""What the use of a trained model needs besides its weights: the roles, and the encoder's configuration and tokenizer.

roles.json                {"roles": ["None", "Facts", ...]} in the order of the classes
encoder/                  config.json and the tokenizer's files; only of a pretrained encoder
"""

import json
from pathlib import Path

from shoestring.base.errors import UsageError
from shoestring.base.reading import read_json
from shoestring_recipes.legal.roles import role_names, roles_problem

_ROLES, _ENCODER = "roles.json", "encoder"


def save(folder: Path, roles: tuple[str, ...], encoder: str | None, *, download: bool) -> None:
    """Write the files into `folder`. Raises UsageError if the encoder cannot be read, and OSError."""
    (folder / _ROLES).write_text(json.dumps({"roles": roles}, ensure_ascii=False, indent=1), encoding="utf-8")
    if encoder is None:
        return
    from shoestring.integrations.huggingface import pretrained
    from shoestring_recipes.legal.classifier import load_configuration
    from shoestring_recipes.legal.tokens import PretrainedTokenizer

    with pretrained.reading(f"encoder={encoder}"):
        configuration = load_configuration(pretrained.find(encoder, download=download))
    configuration.save_pretrained(folder / _ENCODER)
    PretrainedTokenizer(encoder, download=download).save(folder / _ENCODER)


def read_roles(folder: Path) -> tuple[str, ...]:
    """Return the roles in the order of the classes. Raises UsageError if the file is damaged."""
    path = folder / _ROLES
    try:
        roles = read_json(path)["roles"]
        if problem := roles_problem(",".join(roles)):
            raise ValueError(problem)
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="copy the run again from its source") from error
    return role_names(",".join(roles))


def encoder_folder(folder: Path, encoder: str | None) -> str | None:
    """Return the stored configuration and tokenizer of the option `encoder`."""
    return str(folder / _ENCODER) if encoder is not None else None
