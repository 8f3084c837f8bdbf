"""Every number on a command line has both bounds, and the largest that are allowed do no harm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from laminabench.cli.main import main
from laminabench.cli.options import NumberRange
from laminabench.requests.compare import CompareRequest
from laminabench.requests.fields import MAX_COUNT, Request
from laminabench.requests.plan import PlanRequest
from laminabench.requests.replay import ReplayRequest
from laminabench.requests.sweep import SweepRequest


def commands(group: click.Command, *words: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield from commands(command, *words, name)
    else:
        yield " ".join(words), group


COMMANDS = dict(commands(main))


def test_every_number_has_both_bounds() -> None:
    for parameter in [parameter for command in COMMANDS.values() for parameter in command.params]:
        kind = parameter.type
        assert not isinstance(kind, click.types.IntParamType) or isinstance(kind, click.IntRange), parameter
        assert not isinstance(kind, click.types.FloatParamType) or isinstance(kind, NumberRange), parameter
        if isinstance(kind, click.IntRange | NumberRange):
            assert None not in (kind.min, kind.max), parameter.name


@pytest.mark.parametrize("kind", [ReplayRequest, CompareRequest, PlanRequest, SweepRequest])
def test_every_number_of_a_file_has_both_bounds(kind: type[Request]) -> None:
    for field in kind.fields().values():
        for each in field.alternatives():
            if getattr(each, "__origin__", each) in (int, float):
                limits = each.__metadata__[0]
                assert limits.le is not None, field.name
                assert (limits.ge, limits.gt) != (None, None), field.name


# Each was an internal error at a value that is refused now, or at the largest that is taken.
FLAGS = ("min-batch", "max-prompt", "max-output", "num-requests", "sample")


@pytest.mark.parametrize("flag", FLAGS)
def test_the_largest_number_is_taken_and_larger_ones_are_refused(
    flag: str, printed: Callable[..., str], refused: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,100,20\n1,200,30\n")
    replay = "replay --trace t.csv --system lamina --offline --no-out -q"
    shorter = {"max-prompt": " --max-output 25", "max-output": " --max-prompt 150"}.get(flag, "")
    printed(f"{replay} --{flag} {MAX_COUNT}{shorter}")
    refused(f"--{flag}", f"{replay} --{flag} {MAX_COUNT + 1}{shorter}")
