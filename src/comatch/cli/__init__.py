"""The command line: `comatch train | compare | evaluate | predict | export | report | ...`."""

import sys
import warnings

import typer

from comatch import compiler_cache as cache
from comatch import launch
from comatch.cli import (
    bench,
    catalogue,
    classifier,
    compare,
    export,
    report,
    reproduce,
    train,
    transfer,
)
from comatch.cli.console import err, fail, fail_of_many, warn
from comatch.errors import TOO_LITTLE_MEMORY, UserError

app = typer.Typer(
    name="comatch",
    help="An image classifier from a handful of labels and many unlabelled images.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for command in (  # in the order in which --help lists them
    train.train,
    compare.compare,
    classifier.evaluate,
    classifier.predict,
    export.export,
    report.report,
    bench.bench,
    catalogue.methods,
    catalogue.recipes,
):
    app.command()(command)
app.add_typer(reproduce.app, name="reproduce")
app.add_typer(transfer.app, name="transfer")


def main() -> None:
    """Runs the command line; a mistake is one line and exit code 2, never a traceback."""
    warnings.showwarning = lambda message, *_: warn(str(message))
    cache.keep_bytecode()
    try:
        if launch.several() and sys.argv[1:2] != ["train"]:
            raise UserError("only `comatch train` works in several processes: leave torchrun out")
        app()
    except UserError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.strerror or error}: {error.filename or 'no file named'}")
    except KeyboardInterrupt:
        err.print("stopped")
        sys.exit(130)
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch is not imported just to ask
            fail(TOO_LITTLE_MEMORY)
        if launch.several():
            fail_of_many(error)
        raise
