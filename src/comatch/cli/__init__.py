"""The command line: `comatch train | pretrain | compare | evaluate | predict | ...`."""

import io
import sys
import warnings
from typing import Annotated

import typer

from comatch import compiler_cache, launch
from comatch.cli import (
    bench,
    cache,
    compare,
    encoders,
    evaluate,
    export,
    label,
    methods,
    predict,
    pretrain,
    push,
    recipes,
    report,
    reproduce,
    serve,
    suggest,
    train,
    transfer,
)
from comatch.cli.console import err, fail, fail_as_rank, out, warn
from comatch.errors import TOO_LITTLE_MEMORY, UserError
from comatch.version import __version__

app = typer.Typer(
    name="comatch",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"comatch {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def comatch(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=print_version, is_eager=True),
    ] = False,
) -> None:
    """Learn an image classifier from few labels and many unlabelled images."""


for command in (  # in the order in which --help lists them
    suggest.suggest,
    label.label,
    train.train,
    pretrain.pretrain,
    compare.compare,
    evaluate.evaluate,
    predict.predict,
    export.export,
    serve.serve,
    push.push,
    report.report,
    bench.bench,
    methods.methods,
    recipes.recipes,
    encoders.encoders,
    cache.cache,
):
    app.command()(command)
app.add_typer(reproduce.app, name="reproduce")
app.add_typer(transfer.app, name="transfer")


def main() -> None:
    """Run the command line. A user error is one line and exit code 2, not a traceback."""
    warnings.showwarning = lambda message, *_: warn(str(message))
    warnings.filterwarnings("ignore", module="PIL")  # what cannot be read is named by us
    if isinstance(sys.stdout, io.TextIOWrapper):  # whatever the terminal cannot show
        sys.stdout.reconfigure(errors="backslashreplace")
    compiler_cache.keep_bytecode()
    try:
        if launch.several() and sys.argv[1:2] not in (["train"], ["pretrain"]):
            raise UserError(
                "only `comatch train` and `comatch pretrain` run in several processes: leave "
                "torchrun out"
            )
        app()
    except UserError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.strerror or error}: {error.filename or 'no file named'}")
    except KeyboardInterrupt:
        err.print("stopped")
        sys.exit(130)
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # without importing torch
            fail(TOO_LITTLE_MEMORY)
        if launch.several():
            fail_as_rank(error)
        raise
