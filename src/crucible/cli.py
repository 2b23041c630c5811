"""The command line: ``crucible fuse``, ``prove``, ``race``, ``sweep``, ``report`` and ``doctor``."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from crucible import __version__, completion
from crucible.files import ProblemError, check_path, check_problem

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Fuse a PyTorch Model into CUDA kernels, and prove that they compute what it computes: with or without a GPU.

    \b
    Examples:
      crucible doctor                         what this machine has, and what it lacks
      crucible fuse model.py                  writes model_new.py and proves it
      crucible prove model.py model_new.py    judges a file of whatever origin
      crucible race model.py model_new.py     on a GPU: times it beside eager and torch.compile

    crucible COMMAND -h has the options of a command, and more examples.
    """,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"crucible {__version__}")
        raise typer.Exit


def _python_file(metavar: str, text: str) -> Any:
    return typer.Argument(metavar=metavar, autocompletion=completion.python_files, help=text)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="say which version this is")
    ] = False,
) -> None:
    """crucible."""


@app.command()
def fuse(
    model: Annotated[Path, _python_file("MODEL.py", "a file with Model, get_inputs, get_init_inputs")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="NEW.py", help="[default: MODEL_new.py beside MODEL.py]")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="print the plan: every kernel and what it costs")] = False,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", autocompletion=completion.gpu_names,
            help="whose speed of light [default: the GPU present, else h200]",
        ),  # fmt: skip
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            autocompletion=completion.words("auto", "mma", "simt"),
            help="mma: tensor cores from sm_80 on; simt: ordinary cores; auto: the best the chip has",
        ),
    ] = "auto",
    precision: Annotated[
        str,
        typer.Option(
            autocompletion=completion.words("torch", "fp32", "tf32"),
            help="torch: as its TF32 switches say at run time; fp32: no TF32; tf32: always",
        ),
    ] = "torch",
    dtype: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.TYPES,
            help="types the file takes and is proven in, a,b,.. [default: all; proven in the Model's own]",
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="refuse if any operator would stay torch's")] = False,
    forward_only: Annotated[bool, typer.Option("--forward-only", help="inference only: no backward kernels")] = False,
    tune: Annotated[
        bool | None,
        typer.Option("--tune/--no-tune", help="time alternatives on the GPU [default: if there is one]"),
    ] = None,
    tune_budget: Annotated[float, typer.Option(metavar="SECONDS", help="for tuning, the proof not counted")] = 120.0,
    force: Annotated[bool, typer.Option("--force", help="overwrite a file that crucible did not write")] = False,
    no_prove: Annotated[bool, typer.Option("--no-prove", help="write the file and stop there")] = False,
    device: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.DEVICES,
            help="prove on cuda, or sim for the simulator [default: a GPU if there is one]",
        ),
    ] = None,
    arch: Annotated[str | None, typer.Option(help="also compile for `all` architectures, or for sm_..")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="a shorter proof: fewer trials, sizes and ranges")] = False,
    seed: Annotated[int | None, typer.Option(help="of the proof [default: a new one, shown in the verdict]")] = None,
    trials: Annotated[int, typer.Option(help="of the proof: forward trials with different seeds")] = 3,
    timeout: Annotated[float, typer.Option(help="of the proof: seconds for any one step")] = 120.0,
    sanitize: Annotated[bool, typer.Option("--sanitize", help="on a GPU: prove under compute-sanitizer too")] = False,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write plan and proof there")] = None,
) -> None:
    """Turn MODEL.py's Model into a self-contained file with fused CUDA kernels, forward and backward, and prove it.

    The file imports torch alone, takes any batch and image size that the Model takes, and says in its header which
    operator went into which kernel and what was proven.

    \b
    Examples:
      crucible fuse model.py                       writes and proves model_new.py
      crucible fuse model.py --explain --no-prove  shows what would be fused, and why not more
      crucible fuse model.py -o fast.py --strict   refuses if torch keeps any of the work
      crucible fuse model.py --dtype float16 --forward-only --device sim
      crucible fuse model.py --explain --gpu a100  with the least times of another GPU
      crucible fuse model.py --tune --tune-budget 300   on a GPU: the fastest of many that is proven

    Exit code: 0 written and proven (or --no-prove), 1 written but refuted, 2 could not.
    """
    errors = Console(stderr=True)
    from crucible.report.progress import Progress

    proof_options: dict[str, Any] = {
        "device": device, "arch": arch, "quick": quick, "trials": trials, "timeout": timeout, "sanitize": sanitize,
    }  # fmt: skip
    if seed is not None:
        proof_options["seed"] = seed

    def complain(error: object) -> typer.Exit:
        errors.print(f"crucible fuse: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        return typer.Exit(2)

    warnings.filterwarnings("ignore", module="torch")  # of torch about itself
    _check_files(complain, model, "the Model's file")
    _check_writable(json, complain)
    try:
        with Progress(errors, "crucible fuse") as progress:
            progress.say("starting", "")
            from crucible.torch_version import TorchTooOld

            try:
                from crucible.fuse import FuseError
                from crucible.fuse_to_file import FusedFile, fuse_file
                from crucible.graph.capture import CaptureError
            except TorchTooOld as error:
                raise complain(error) from None

            def planned(made: FusedFile) -> None:
                """What is known before the proof, which takes a while."""
                from crucible.report.plan_table import show_plan, show_summary

                (show_plan if explain else show_summary)(made.explained, Console())
                Console().print()

            try:
                made = fuse_file(
                    model, output, engine=engine, precision=precision, dtype=dtype, strict=strict, gpu=gpu,
                    forward_only=forward_only, force=force, prove=not no_prove, tune=tune,
                    tune_budget=tune_budget, planned=planned, progress=progress.say, gauge=progress.gauge,
                    **proof_options,
                )  # fmt: skip
            except CaptureError as error:
                raise complain(f"{model.name}: {error}") from None
            except (FuseError, ProblemError, ValueError, OSError) as error:
                if debugging():
                    raise
                raise complain(error) from None
            except Exception as error:  # noqa: BLE001  a defect of ours, which is no reason to fill the screen
                if debugging():
                    raise
                raise complain(
                    f"{model.name} could not be fused, and crucible does not know better why than this: "
                    f"{type(error).__name__}: {str(error).strip() or 'no message'}. {TRACEBACK_VARIABLE}=1 shows where"
                ) from None
    except KeyboardInterrupt:
        errors.print("crucible fuse: interrupted")
        raise typer.Exit(130) from None
    console = Console()
    _show_proofs(made, console)
    if json is not None:
        from json import dumps

        from crucible.prove.proof import plain
        from crucible.write import WriteError, write_atomically

        try:
            write_atomically(json, dumps(plain(made.to_json()), indent=2, allow_nan=False) + "\n")
        except WriteError as error:
            raise complain(error) from None
    raise typer.Exit(made.exit_code)


def _show_proofs(made: Any, console: Console) -> None:
    """The verdicts, then where the file is; a file that is not proven is named so."""
    from crucible.report.terminal import show

    for proof in made.proofs:
        show(proof, console)
        console.print()
    if made.proof is None:
        words, style = "written, not proven (--no-prove)", "yellow"
    elif made.proof.ok:
        words, style = "written and proven", "bold green"
    else:
        words, style = "written, but NOT proven", "bold red"
    console.print(f"[{style}]{words}:[/] {escape(str(made.path))}", soft_wrap=True, highlight=False)


TRACEBACK_VARIABLE = "CRUCIBLE_TRACEBACK"


def debugging() -> bool:
    """Whether whoever runs this wants tracebacks instead of sentences."""
    return bool(os.environ.get(TRACEBACK_VARIABLE))


@app.command()
def prove(
    reference: Annotated[Path, _python_file("REF.py", "a file with Model, get_inputs, get_init_inputs")],
    candidate: Annotated[Path, _python_file("NEW.py", "a file with ModelNew")],
    device: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.DEVICES, help="cuda, or sim for the simulator [default: a GPU if there is one]"
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.TYPE, help="float32, float16, bfloat16 [default: as the reference declares]"
        ),
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
    precision: Annotated[
        str,
        typer.Option(
            autocompletion=completion.PRECISIONS, help="torch: what its TF32 switches permit; fp32: no TF32"
        ),
    ] = "torch",
) -> None:
    """Say whether NEW.py's ModelNew can be trusted to do what REF.py's Model does.

    Both run in confined processes on the same data: forward, gradients, side effects, other sizes, extreme values,
    memory, and the usual ways to cheat. What is wrong is named, with the command that shows it again.

    \b
    Examples:
      crucible prove model.py model_new.py                   on the GPU, or in the simulator if there is none
      crucible prove model.py model_new.py --device sim --arch all --json proof.json
      crucible prove model.py model_new.py --quick --forward-only --dtype float16
      crucible prove model.py model_new.py --seed 7          the same run again

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

    def complain(error: object) -> typer.Exit:
        errors.print(f"crucible prove: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        return typer.Exit(2)

    _check_files(complain, reference, "the reference", candidate)
    _check_writable(json, complain)
    from crucible.report.progress import Progress  # rich is light, torch (behind prove) is not

    try:
        with Progress(errors) as progress:
            from crucible.prove.run import prove as run

            proof = run(reference, candidate, progress=progress.say, **options)
    except ValueError as error:  # an option that makes no sense
        raise complain(error) from None
    except KeyboardInterrupt:
        errors.print("crucible prove: interrupted")
        raise typer.Exit(130) from None
    from crucible.report.terminal import show

    show(proof, Console())
    if json is not None:
        try:
            json.write_text(proof.to_text())
        except OSError as error:
            raise complain(f"{json} cannot be written: {error.strerror}") from None
    raise typer.Exit(proof.exit_code)


@app.command()
def race(
    reference: Annotated[Path, _python_file("REF.py", "a file with Model, get_inputs, get_init_inputs")],
    candidates: Annotated[list[Path], _python_file("NEW.py ...", "files with ModelNew")],
    train: Annotated[bool, typer.Option("--train", help="the whole training step too: forward and backward")] = False,
    against: Annotated[
        str,
        typer.Option(
            metavar="LIST", autocompletion=completion.BASELINES, help="eager, channels_last, compile, max_autotune"
        ),
    ] = "eager,channels_last,compile",
    rounds: Annotated[int, typer.Option(help="in each, everybody takes a turn")] = 7,
    samples: Annotated[int, typer.Option(help="timed calls in a turn")] = 3,
    warm: Annotated[int, typer.Option(help="calls before them that do not count, for 0.1 s at least")] = 5,
    dtype: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.TYPE, help="float32, float16, bfloat16 [default: as the reference declares]"
        ),
    ] = None,
    unproven: Annotated[bool, typer.Option("--unproven", help="no proof: times are marked as unproven")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="a shorter proof: fewer trials, sizes and ranges")] = False,
    forward_only: Annotated[
        bool, typer.Option("--forward-only", help="inference only: gradients are not proven")
    ] = False,
    precision: Annotated[
        str, typer.Option(autocompletion=completion.PRECISIONS, help="of the proof: torch, or fp32 for no TF32")
    ] = "torch",
    seed: Annotated[int | None, typer.Option(help="for inputs and weights [default: a new one]")] = None,
    timeout: Annotated[float, typer.Option(help="seconds for any one step of a candidate")] = 120.0,
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", autocompletion=completion.gpu_names,
            help="whose speed of light, where no GPU is present [default: h200]",
        ),  # fmt: skip
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write everything there")] = None,
) -> None:
    """Time NEW.py's ModelNew beside REF.py's Model: eager, channels last and compiled, on this machine's GPU.

    Candidates are proven first: what is not proven gets no time. All take turns, each in a process of its own, on fresh
    inputs and with a cold cache; one is called faster only beyond what eager differs from itself, and one that is
    faster than memory allows is refuted. Without a GPU there are no times, only the speed of light.

    \b
    Examples:
      crucible race model.py model_new.py                 forward, against eager, channels last and torch.compile
      crucible race model.py a.py b.py --train            two candidates, forward and the training step
      crucible race model.py a.py --against eager,compile,max_autotune --json race.json

    Exit code: 0 all proven and raced, 1 one is refuted, 2 one could not be judged, or there is no GPU.
    """
    from crucible.report.progress import Progress

    errors = Console(stderr=True)

    def complain(error: object) -> typer.Exit:
        errors.print(f"crucible race: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        return typer.Exit(2)

    warnings.filterwarnings("ignore", module="torch")  # of torch about itself
    _check_files(complain, reference, "the reference", *candidates)
    _check_writable(json, complain)
    options: dict[str, Any] = {
        "train": train, "against": _listed(against),
        "rounds": rounds, "samples": samples, "warm": warm, "dtype": dtype, "unproven": unproven, "quick": quick,
        "forward_only": forward_only, "precision": precision, "timeout": timeout, "gpu": gpu,
    }  # fmt: skip
    if seed is not None:
        options["seed"] = seed
    try:
        with Progress(errors, "crucible race") as progress:
            progress.say("starting", "")
            from crucible.race.options import RaceError
            from crucible.race.run import race as run
            from crucible.report.race_table import show

            try:
                result = run(reference, candidates, progress=progress.say, **options)
            except (RaceError, ProblemError, ValueError, OSError) as error:
                if debugging():
                    raise
                raise complain(error) from None
    except KeyboardInterrupt:
        errors.print("crucible race: interrupted")
        raise typer.Exit(130) from None
    show(result, Console())
    if json is not None:
        from crucible.write import write_atomically

        write_atomically(json, result.to_text())
    raise typer.Exit(result.exit_code)


def _check_files(complain: Callable[[object], typer.Exit], problem: Path, what: str, *candidates: Path) -> None:
    """Find out before torch is loaded that a file is not what it should be. What is in a candidate the proof says."""
    try:
        check_problem(problem, what)
        for each in candidates:
            check_path(each, "the candidate")
    except ProblemError as error:
        raise complain(error) from None


def _check_writable(path: Path | None, complain: Callable[[object], typer.Exit]) -> None:
    """Find out before the work that what comes of it can be written."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise complain(f"{path} cannot be written: {'it is a folder' if path.is_dir() else 'there is no such folder'}")


@app.command()
def sweep(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", autocompletion=completion.folders,
            help="a folder of files with Model, searched to the bottom",
        ),  # fmt: skip
    ],
    candidates: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="judge NAME.py or NAME_new.py from there [default: fuse every Model]"),
    ] = None,
    store: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="where rows are kept [default: DIR_sweep here]")
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="OLD", help="the folder of an earlier sweep: say what has changed")
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="race the whole training step too")] = False,
    against: Annotated[
        str,
        typer.Option(
            metavar="LIST", autocompletion=completion.BASELINES, help="eager, channels_last, compile, max_autotune"
        ),
    ] = "eager,channels_last,compile",
    rounds: Annotated[int, typer.Option(help="of a race; in each, everybody takes a turn")] = 7,
    samples: Annotated[int, typer.Option(help="timed calls in a turn")] = 3,
    dtype: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.TYPE, help="float32, float16, bfloat16 [default: as the reference declares]"
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="shorter proofs: fewer trials, sizes and ranges")] = False,
    forward_only: Annotated[
        bool, typer.Option("--forward-only", help="inference only: no gradients are fused or proven")
    ] = False,
    precision: Annotated[
        str, typer.Option(autocompletion=completion.PRECISIONS, help="torch: as its TF32 switches say; fp32: no TF32")
    ] = "torch",
    tune: Annotated[bool, typer.Option("--tune", help="on a GPU: time alternatives while fusing")] = False,
    tune_budget: Annotated[float, typer.Option(metavar="SECONDS", help="for tuning one file")] = 120.0,
    jobs: Annotated[int | None, typer.Option(help="files at a time on the processor [default: half its cores]")] = None,
    limit: Annotated[float, typer.Option(help="seconds for fusing one file, and again for judging it")] = 1800.0,
    timeout: Annotated[float, typer.Option(help="seconds for any one step of a candidate")] = 120.0,
    seed: Annotated[int, typer.Option(help="for inputs and weights")] = 0,
    retry: Annotated[bool, typer.Option("--retry", help="do again what is not proven in the store")] = False,
    ray: Annotated[
        str | None,
        typer.Option("--ray", metavar="ADDRESS", help="work on a Ray cluster: HOST:PORT, or auto for this machine's"),
    ] = None,
    ray_retries: Annotated[int, typer.Option(help="how often a step is done again when its node is lost")] = 3,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write the summary there")] = None,
) -> None:
    """Fuse, prove and race every Model in a folder, or prove and race the candidates beside them.

    Every row is kept as soon as it is known; a sweep that was killed goes on where it was. One bad file costs one row.
    Without a GPU candidates are proven in the simulator, and there are no times.

    \b
    Examples:
      crucible sweep problems --quick                       fuses and proves all, into problems_sweep/
      crucible sweep problems --candidates fused --train    judges files that are there already
      crucible sweep problems --store new --compare old     and says what is slower or no longer right
      crucible sweep problems --ray 10.0.0.1:6379           does the work on the nodes of a Ray cluster

    Exit code: 0 all proven and nothing slower than in OLD, 1 something is refuted or a regression, 2 something could
    not be judged.
    """
    errors = Console(stderr=True)

    def complain(error: object) -> typer.Exit:
        errors.print(f"crucible sweep: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        return typer.Exit(2)

    warnings.filterwarnings("ignore", module="torch")  # of torch about itself
    from crucible.sweep.find import SweepError, check_folder

    try:
        check_folder(folder)
    except SweepError as error:
        raise complain(error) from None
    _check_writable(json, complain)
    from crucible.report.progress import Progress

    with Progress(errors, "crucible sweep") as progress:
        progress.say("starting", "")
        from crucible.race.options import RaceError
        from crucible.report.sweep_table import LiveBoard, show
        from crucible.sweep.run import sweep as run
        from crucible.sweep.store import Store, StoreError
        from crucible.sweep.summary import compare as compared
        from crucible.sweep.summary import document, exit_code

    options: dict[str, Any] = {
        "train": train, "against": _listed(against), "rounds": rounds, "samples": samples, "dtype": dtype,
        "quick": quick, "forward_only": forward_only, "precision": precision, "tune": tune, "tune_budget": tune_budget,
        "jobs": jobs, "limit": limit, "timeout": timeout, "seed": seed, "retry": retry, "ray": ray,
        "ray_retries": ray_retries,
    }  # fmt: skip
    place = store or Path(f"{folder.resolve().name}_sweep")
    try:
        old = Store(compare, create=False).rows() if compare is not None else []
        with LiveBoard(errors) as board:
            result = run(folder, place, candidates=candidates, board=board, **options)
    except (SweepError, StoreError, RaceError, OSError) as error:
        if debugging():
            raise
        raise complain(error) from None
    except KeyboardInterrupt:
        errors.print(f"crucible sweep: interrupted; the same command goes on from {place}", highlight=False)
        raise typer.Exit(130) from None
    changes = compared(old, result.rows) if compare is not None else []
    show(result, changes, Console(), str(compare) if compare is not None else None)
    if json is not None:
        from json import dumps

        from crucible.prove.proof import plain
        from crucible.write import write_atomically

        write_atomically(json, dumps(plain(document(result, changes)), indent=1, allow_nan=False) + "\n")
    raise typer.Exit(exit_code(result.rows, changes))


def _listed(text: str) -> tuple[str, ...]:
    return tuple(a.strip().replace("-", "_") for a in text.split(",") if a.strip())


@app.command()
def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="what fuse, prove or race wrote with --json, or a sweep's folder")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="PAGE.html", help="[default: report.html]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="overwrite a file that crucible did not write")] = False,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="list the pages there")] = None,
) -> None:
    """Make a page of a record: the verdict, the plan, the race, the roofline, errors, the CUDA, how to run it again.

    A page is one file that needs no network. A sweep gives an index that can be sorted, and a folder of pages beside
    it. Nothing is run: times and errors are those of the record.

    \b
    Examples:
      crucible report proof.json                        of crucible prove model.py new.py --json proof.json
      crucible report race.json -o race.html
      crucible report problems_sweep -o sweep.html      writes sweep.html and sweep_pages/

    Exit code: 0 the pages are there, 2 the record cannot be read or the pages cannot be written.
    """
    errors = Console(stderr=True)

    def complain(error: object) -> typer.Exit:
        errors.print(f"crucible report: {error}", style="red", highlight=False, markup=False)
        return typer.Exit(2)

    _check_writable(json, complain)
    from crucible.report.progress import Progress

    with Progress(errors, "crucible report") as progress:
        progress.say("starting", "")
        from crucible.report.page.files import report as write_pages
        from crucible.report.page.subject import RecordError

        try:
            pages = write_pages(run, output, force=force, progress=lambda text: progress.say("writing", text))
        except RecordError as error:
            if debugging():
                raise
            raise complain(error) from None
    from crucible.report.page_list import document, show

    show(pages, Console())
    if json is not None:
        from json import dumps

        from crucible.write import write_atomically

        write_atomically(json, dumps(document(pages), indent=1) + "\n")


@app.command()
def doctor(
    json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """Say what this machine has and lacks, with the fix.

    \b
    Examples:
      crucible doctor
      crucible doctor --json

    Exit code: 0 usable, 1 not.
    """
    from crucible.doctor import run

    raise typer.Exit(int(run(as_json=json)))


def main() -> None:
    app(prog_name="crucible")


if __name__ == "__main__":
    main()
