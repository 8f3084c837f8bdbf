"""Parses arguments of `vllm serve` with the parser of the vLLM that is installed here, and starts nothing."""

from __future__ import annotations

import importlib
import sys

# Where versions have it.
PARSERS = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
CONFIGS = ("vllm.config.attention", "vllm.config")
CLASSES = ("vllm.utils.argparse_utils", "vllm.utils")


def first_of(names: tuple[str, ...], attribute: str) -> object:
    """Return an attribute of the first module that has it."""
    for name in names:
        try:
            return getattr(importlib.import_module(name), attribute)
        except (ImportError, AttributeError):
            continue
    raise SystemExit(f"this vLLM has no {attribute}")


if __name__ == "__main__":
    make_arg_parser = first_of(PARSERS, "make_arg_parser")
    parser_of = first_of(CLASSES, "FlexibleArgumentParser")
    parsed = make_arg_parser(parser_of(prog="vllm serve")).parse_args(sys.argv[1:])  # type: ignore[operator]
    # The parser takes any text as a backend's name.
    config_of = first_of(CONFIGS, "AttentionConfig")
    try:
        config_of(backend=parsed.attention_backend)  # type: ignore[operator]
    except ValueError as error:
        raise SystemExit(str(error)) from None
