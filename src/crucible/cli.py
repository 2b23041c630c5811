"""The command line: ``crucible prove``, ``crucible doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from crucible import __version__

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Prove that a ModelNew computes what its reference computes: with or without a GPU.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"crucible {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")] = False,
) -> None:
    """crucible."""


@app.command()
def prove(
    reference: Annotated[Path, typer.Argument(metavar="REF.py", help="a file with Model, get_inputs, get_init_inputs")],
    candidate: Annotated[Path, typer.Argument(metavar="NEW.py", help="a file with ModelNew")],
    device: Annotated[
        str | None, typer.Option(help="cuda, or sim for the simulator [default: a GPU if there is one]")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32, float16, bfloat16 [default: as the reference declares]")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="for inputs and weights [default: a new one, shown in the verdict]")
    ] = None,
    trials: Annotated[int, typer.Option(help="forward trials with different seeds")] = 3,
    timeout: Annotated[float, typer.Option(help="seconds for any one step of the candidate")] = 120.0,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write the whole proof there")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="fewer trials, sizes and ranges")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="torch's own operators doing the work refute it")] = False,
    forward_only: Annotated[
        bool, typer.Option("--forward-only", help="inference only: gradients are not checked")
    ] = False,
    arch: Annotated[str | None, typer.Option(help="also compile for `all` architectures, or for sm_..")] = None,
    sanitize: Annotated[bool, typer.Option("--sanitize", help="on a GPU: compute-sanitizer too")] = False,
    precision: Annotated[str, typer.Option(help="torch: what its TF32 switches permit; fp32: no TF32")] = "torch",
) -> None:
    """Say whether NEW.py's ModelNew can be trusted to do what REF.py's Model does.

    Exit code: 0 proven, 1 refuted, 2 could not be judged.
    """
    options: dict[str, Any] = {
        "device": device,
        "dtype": dtype,
        "trials": trials,
        "timeout": timeout,
        "quick": quick,
        "strict": strict,
        "forward_only": forward_only,
        "arch": arch,
        "sanitize": sanitize,
        "precision": precision,
    }
    if seed is not None:
        options["seed"] = seed
    errors = Console(stderr=True)
    from crucible.report.progress import Progress  # rich is light, torch (behind prove) is not

    try:
        with Progress(errors) as progress:
            from crucible.prove.run import prove as run

            proof = run(reference, candidate, progress=progress.say, **options)
    except ValueError as error:  # an option that makes no sense
        errors.print(f"crucible prove: {error}", style="red", highlight=False)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        errors.print("crucible prove: interrupted")
        raise typer.Exit(130) from None
    from crucible.report.terminal import show

    show(proof, Console())
    if json is not None:
        try:
            json.write_text(proof.to_text())
        except OSError as error:
            errors.print(f"crucible prove: {json} cannot be written: {error.strerror}", style="red", highlight=False)
            raise typer.Exit(2) from None
    raise typer.Exit(proof.exit_code)


@app.command()
def doctor(
    json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """Say what this machine has and lacks, with the fix. Exit code: 0 usable, 1 not."""
    from crucible.doctor import run

    raise typer.Exit(int(run(as_json=json)))


def main() -> None:
    app()


if __name__ == "__main__":
    main()
