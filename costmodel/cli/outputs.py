"""What the subcommands write: a trained model with what lies beside it, and results files."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from felix import errors, files

if TYPE_CHECKING:
    from costmodel.models import checkpoint


def check_writable(folder: Path) -> None:
    """Raise OutputError now if files could not be written there later; the folder is made."""
    with errors.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass


def write_scores(
    path: Path,
    model: checkpoint.Predictor,
    metadata: checkpoint.Metadata,
    scores: dict[str, Any],
    folder: Path,
) -> Path:
    """Write the scores of all workloads into `folder`, and the card beside the checkpoint `path`.

    Returns:
        Where the card is.
    """
    from costmodel.training import model_card

    _write(folder / model_card.SCORES, json.dumps(scores, indent=1))
    card = path.with_name(model_card.FILE_NAME)
    names = "" if folder == path.parent else f"{folder}/"
    _write(card, model_card.render(path.name, model, metadata, names))
    return card


def write_results(options: argparse.Namespace, content: dict[str, Any]) -> None:
    """Write the results to `--out`, if there is one."""
    if options.out is not None:
        _write(Path(options.out), json.dumps(content, indent=1))


def _write(path: Path, text: str) -> None:
    with errors.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(path, text)
