"""The `lanewise` command: a table of commands, loaded when called.

Laws: answers go to stdout, everything else to stderr.  Exit codes: 0 done, 1 refused or failed,
2 usage, 130 interrupted.  `lanewise --help` imports no command, so that it is instant.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import click

from lanewise.cli import guard

COMMANDS: dict[str, tuple[str, str]] = {  # name -> (module, the line in --help)
    "run": ("run", "Answer a prompt."),
    "chat": ("chat", "Talk with a model."),
    "inspect": ("inspect", "Show a model's metadata, tensors and memory."),
    "plan": ("plan", "Show the compiled step: launches, kernels, reasons, arena."),
    "bench": ("bench", "Measure prompt and generation speed."),
    "perplexity": ("perplexity", "Measure how well a model predicts a text."),
    "pull": ("pull", "Download a model into the cache."),
    "list": ("listing", "List the models that have a name."),
    "cache": ("cache", "Look at the cache, or empty it."),
    "doctor": ("doctor", "Check this machine: CPU, compiler, cache, threads."),
}


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"lanewise.cli.{COMMANDS[cmd_name][0]}")
        return module.command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def main(self, args: Sequence[str] | None = None, *_: Any, **extra: Any) -> Any:
        """Run and leave with the exit code; no exception gets past (`guard` words them)."""
        extra.pop("standalone_mode", None)
        guard.leave(lambda: super(LazyGroup, self).main(args, standalone_mode=False, **extra))


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    import platform

    import lanewise

    python = platform.python_version()
    click.echo(f"lanewise {lanewise.__version__}")
    click.echo(f"Python {python} on {platform.system()} {platform.machine()}")
    ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="MODEL is a .gguf file or a name from `lanewise list`. "
    "LANEWISE_DEBUG=1 shows the traceback of an error.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Print the version and leave.",
)
def app() -> None:
    """Compile a language model into one native program, once, and run it.

    \b
    lanewise run smollm2 "What is the capital of France?" --temp 0
    lanewise chat smollm2
    """


def main() -> None:
    """The entry point of the console script; leaves through SystemExit."""
    guard.arm()
    app.main(prog_name="lanewise")
