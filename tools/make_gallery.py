"""The gallery: for each reference problem its ModelNew, plan, proof, race and page, all made by this one command.

    python tools/make_gallery.py                  fuses, proves in the simulator what changed, and writes the pages
    python tools/make_gallery.py --race FOLDER    on a GPU: races the gallery's files, a record each into FOLDER
    python tools/make_gallery.py --race FOLDER --simulated    the same with the proofs that are there
    python tools/make_gallery.py --records FOLDER takes those records into the gallery, and writes the pages

A proof is kept for as long as the generated text is the one that it speaks of, a race for as long as what it compiled
for its element type is, the backward pass where it raced training; ``stale`` says what is out of date.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "gallery"
GPU = "h200"
SEED = 7
PROOFS = 3  # at a time on a GPU: each wants its memory
TIMEOUT = 1800.0  # seconds for a step of a proof: the largest problem has weights of 268 MB, on a simulated chip
OF_THE_MACHINE = ("platform", "machine", "isolation")  # not what a figure depends on
AGAINST = ("eager", "channels_last", "compile", "max_autotune")

if TYPE_CHECKING:
    from crucible.fuse import Fused


def problems() -> list[Path]:
    return sorted((ROOT / "problems").glob("*.py"))


def body(text: str) -> str:
    """A generated file without its header, which says when and how it was proven."""
    return text.split('"""', 2)[2]


def mark(text: str) -> str:
    """What a record has to remember of the text that it is about."""
    return hashlib.sha256(body(text).encode()).hexdigest()


# How float32 is built for the gallery's GPU, as the host sees it and as the device does.
RACED = ("SCALAR=0", "WIDE=0", "CONV=1", "MATMUL=2", "HOPPER=1")
VIEWS = ((), ("-D__CUDA_ARCH__=900", "-D__CUDA_ARCH_FEAT_SM90_ALL=1"))
# What of a file only refuses a configuration that it was not made for: less than a microsecond of the host's a call.
CHECKS = re.compile(
    r"^(?:def _settings\(|class _Seen:|def _expect\(|# Whether they are in training mode|_LAYERS = ).*?(?=^\S)"
    r"|^ +_expect\(self, [^\n]*\n",
    re.M | re.S,
)
# What says the same with other words since races were taken, and is asked but once for each kind of call.
BYTES = re.compile(r"_bytes\((dtype|accum|s\[2\])\)")
BYTES_DEFINED = re.compile(r"^def _bytes\(.*?(?=^\S)", re.M | re.S)
CHANGED = re.compile(r"^try:  # autograd is told of a tensor.*?_version \+ 1\)\n+", re.M | re.S)
# How torch's switches are read, in every call: a check too, of which the page tells. Races were of the older way.
SWITCHES = re.compile(r"^# What torch's switches for TF32 say\..*?^def _allowed\(.*?(?=^\S)", re.M | re.S)
SWITCHES_BEFORE = """# What torch's switches for TF32 read.
_conv_switch = getattr(torch._C, "_get_cudnn_allow_tf32", lambda: torch.backends.cudnn.allow_tf32)
_matmul_switch = torch.get_float32_matmul_precision
"""
ALLOWED = {
    "_allowed(_conv_switch())": "torch.backends.cudnn.allow_tf32",
    "_allowed(_matmul_switch())": 'torch.get_float32_matmul_precision() != "highest"',
}
OTHER_CHECKS = (
    "since this race the file looks in another way whether it is called as it was made for, which is less than a "
    "microsecond of the host's time a call; all else is the text that was raced"
)


def raced_mark(text: str, *, train: bool = False) -> str:
    """What a race has to remember of the text that it is about: all but comments, checks of the configuration (see
    ``checks_mark``) and what other element types have.

    Without training steps nothing of the backward pass is compiled or called. In which order things are defined does
    not matter to what they compile to, so a function may move from one header to another.
    """
    inside = re.compile(r'(_([A-Z]+)_SOURCE = r""")(.*?)(""")', re.S)
    plain = inside.sub(r"\1\4", body(text))
    if not train:
        plain = re.sub(r'^_BACKWARD_\w+ = r""".*?"""\n', "", plain, flags=re.M | re.S)
        plain = re.sub(r"^(def \w*backward\w*\(|class _Backward).*?(?=^\S)", "", plain, flags=re.M | re.S)
        plain = re.sub(r"^.*\bonce_differentiable\n", "", plain, flags=re.M)  # what backward() had
        plain = re.sub(r"^.*backward.*\n", "", plain, flags=re.M | re.I)
    plain = re.sub(r"crucible_[0-9a-f]{12}_", "crucible_", plain)  # the digest of the sources
    plain = BYTES.sub(r"\1.itemsize", BYTES_DEFINED.sub("", plain))
    plain = CHANGED.sub("", plain).replace("_changed(", "torch.autograd.graph.increment_version(")
    plain = SWITCHES.sub(SWITCHES_BEFORE, plain)
    for now, before in ALLOWED.items():
        plain = plain.replace(now, before)
    parts = hashlib.sha256(CHECKS.sub("", plain).encode())
    sources = [found.group(3) for found in inside.finditer(text) if train or found.group(2) != "BACKWARD"]
    for source in sources:
        for view in VIEWS:
            parts.update("\n".join(sorted(_definitions(_compiled_text(source, view)))).encode())
    return parts.hexdigest()


def checks_mark(text: str) -> str:
    """Of a file's checks of the configuration: where they are others than in a race, its page says so."""
    own = body(text)
    return hashlib.sha256("".join([*CHECKS.findall(own), *SWITCHES.findall(own)]).encode()).hexdigest()


def race_mark(text: str, race: dict[str, Any]) -> str:
    """The mark of a text as this race, a record, has to remember it."""
    return raced_mark(text, train=race["options"]["train"])


@functools.cache
def _compiled_text(source: str, view: tuple[str, ...]) -> str:
    """CUDA source as a compiler sees it behind its preprocessor, without what it includes."""
    own = re.sub(r"^[ \t]*#[ \t]*include\b.*$", "", source, flags=re.M)
    command = ["g++", "-E", "-P", "-x", "c++", *(f"-DCRUCIBLE_{m}" for m in RACED), *view, "-"]
    return subprocess.run(command, input=own, capture_output=True, text=True, check=True).stdout


def _definitions(text: str) -> Iterator[str]:
    """What stands at the top of preprocessed CUDA source, or in its namespaces, one after another."""
    text = re.sub(r"\bnamespace\s+\w*\s*\{", "\x01", text)
    start, depth = 0, 0
    for found in re.finditer(r'"(?:\\.|[^"\\])*"|[{}();\x01]', text):
        sign, end = found.group(), found.end()
        if sign in "{(":
            depth += 1
        elif sign in "})" and depth > 0:
            depth -= 1
        if depth == 0 and sign in "};\x01":  # a brace that nothing opened closes a namespace
            definition = " ".join(text[start : found.start() if sign == "\x01" else end].split())
            if definition not in ("", ";", "}"):
                yield definition
            start = end
    if depth or text[start:].strip():
        raise ValueError(f"not understood as C++: {text[start:start + 60]!r}")


def fused_now(path: Path, fused: Fused | None = None) -> Fused:
    """What the code makes of a problem for the gallery's GPU; ``fused`` is what fuse_problem gave, where known."""
    from crucible.fuse import fuse_problem
    from crucible.plan.gpus import find
    from crucible.tune.run import with_shipped

    return with_shipped(path, fused or fuse_problem(path), find(GPU))


def plan_text(fused: Fused) -> str:
    from crucible.plan.gpus import find
    from crucible.report.explain import explain_text

    return explain_text(fused, find(GPU))


# -- is it what the code gives now?


def stale(path: Path, fused: Fused | None = None) -> list[str]:
    """What of a problem's folder is not what the code makes now; empty where all is."""
    place = GALLERY / path.stem
    missing = [n for n in ("model_new.py", "plan.txt", "proof.json", "report.html") if not (place / n).is_file()]
    if missing:
        return [f"{path.stem}: there is no {', '.join(missing)}"]
    now = fused_now(path, fused)
    found = []
    if body((place / "model_new.py").read_text()) != body(now.text):
        found.append(f"{path.stem}/model_new.py is not what is generated now")
    if (place / "plan.txt").read_text() != plan_text(now):
        found.append(f"{path.stem}/plan.txt is not the plan that is made now")
    return found + stale_pages(path)


def stale_pages(path: Path) -> list[str]:
    """What can be seen without fusing: records of other texts, and pages of other templates or records."""
    from crucible.report.page.write import templates_digest

    place = GALLERY / path.stem
    text = (place / "model_new.py").read_text()
    found = []
    if json.loads((place / "proof.json").read_text())["verdict"] != "proven":
        found.append(f"{path.stem}/proof.json is no proof")
    for name, mark_of in (("proof.json", lambda _: mark(text)), ("race.json", lambda r: race_mark(text, r))):
        record = json.loads((place / name).read_text()) if (place / name).is_file() else None
        if record is not None and record.get("of") != mark_of(record):
            found.append(f"{path.stem}/{name} is about another text than model_new.py")
    page = (place / "report.html").read_text()
    for name, wanted in (("crucible-templates", templates_digest()), ("crucible-records", records_digest(place))):
        if f'<meta name="{name}" content="{wanted}">' not in page:
            found.append(f"{path.stem}/report.html was made from other {name.removeprefix('crucible-')}")
    return found


def records_digest(place: Path) -> str:
    """Of what a page is made from."""
    parts = hashlib.sha256()
    for name in ("model_new.py", "plan.txt", "proof.json", "race.json"):
        parts.update((place / name).read_bytes() if (place / name).is_file() else b"-")
    return parts.hexdigest()[:16]


# -- making it


def make(path: Path, records: Path | None, quick: bool) -> Any:
    """Everything of one problem, and what its page is about."""
    fused = fused_now(path)
    place = GALLERY / path.stem
    place.mkdir(parents=True, exist_ok=True)
    file = place / "model_new.py"
    (place / "plan.txt").write_text(plan_text(fused))
    there = file.is_file() and body(file.read_text()) == body(fused.text)
    if not there or not _proven(place / "proof.json", mark(fused.text)):
        _prove(path, file, fused, quick)
    if records is not None and (records / f"{path.stem}.json").is_file():
        _adopt(json.loads((records / f"{path.stem}.json").read_text()), place, fused.text)
    kept = json.loads((place / "race.json").read_text()) if (place / "race.json").is_file() else None
    if kept is not None and kept.get("of") != race_mark(fused.text, kept):
        say(f"{path.stem}: its race was of another text, and is left out")
        (place / "race.json").unlink()
    return write_page(path, fused)


def _proven(record: Path, wanted: str) -> bool:
    found = json.loads(record.read_text()) if record.is_file() else {}
    return found.get("of") == wanted and found["verdict"] == "proven"


def _prove(path: Path, file: Path, fused: Fused, quick: bool) -> None:
    from crucible.prove.proof import plain
    from crucible.prove.run import prove
    from crucible.report.sentence import UNDER_WAY, proof_sentence

    file.write_text(fused.with_proof(UNDER_WAY).text)
    say(f"{path.stem}: proving in the simulator")
    names = (p.relative_to(ROOT) for p in (path, file))
    proof = prove(*names, device="sim", seed=SEED, quick=quick, timeout=TIMEOUT)
    say(f"{path.stem}: {proof.verdict}, {proof.seconds:.0f} s")
    file.write_text(fused.with_proof(proof_sentence([proof])).text)
    proof.environment = _of_versions(proof.environment)
    document = {**plain(proof.to_json(sources=False)), "of": mark(fused.text)}
    (file.parent / "proof.json").write_text(json.dumps(document, indent=1) + "\n")


def _of_versions(environment: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in environment.items() if k not in OF_THE_MACHINE}


def _adopt(race: dict[str, Any], place: Path, text: str) -> None:
    """Take a record, if it is of what this text compiles to. Texts are beside it already."""
    entry, wanted = race["candidates"][0], race_mark(text, race)
    raced = entry.get("source")
    if raced is None or race_mark(raced, race) != wanted:
        say(f"{place.name}: the record is of another text, and is left out")
        return
    entry["source"] = race["source"] = None
    for record in (race, entry.get("proof") or {}):
        record["environment"] = _of_versions(record.get("environment") or {})
    entry["file"], race["reference"] = f"gallery/{place.name}/model_new.py", f"problems/{place.name}.py"
    marks = {"of": wanted, "checks": checks_mark(raced)}
    (place / "race.json").write_text(json.dumps({**race, **marks}, indent=1) + "\n")


def write_page(path: Path, fused: Fused) -> Any:
    from crucible.report.page.write import page_html

    place = GALLERY / path.stem
    subject = subject_of(path, fused)
    text = page_html(subject, index="../index.html", bodies=False)
    stamp = f'<meta name="crucible-records" content="{records_digest(place)}">\n<title>'
    (place / "report.html").write_text(text.replace("<title>", stamp, 1))
    return subject


def subject_of(path: Path, fused: Fused) -> Any:
    """What the page of a problem is about: its race where there is one, else its proof."""
    from crucible.plan.gpus import find
    from crucible.prove.proof import plain
    from crucible.report.explain import explain
    from crucible.report.page.subject import Candidate, Subject, of_document

    place = GALLERY / path.stem
    proof = json.loads((place / "proof.json").read_text())
    if (place / "race.json").is_file():
        record = place / "race.json"
        race = json.loads(record.read_text())
        if race.get("checks") != checks_mark((place / "model_new.py").read_text()):
            race["warnings"] = [*(race.get("warnings") or []), OTHER_CHECKS]
        subject = of_document(race, record)
        assert isinstance(subject, Subject)
    else:
        file = f"gallery/{path.stem}/model_new.py"
        candidate = Candidate("model_new", file, proof["verdict"], proof["reason"], proof)
        subject = Subject(
            path.stem, f"problems/{path.name}", [candidate], environment=proof["environment"], seconds=proof["seconds"],
            untimed="no times: this file has not been raced on a GPU yet, only proven in the simulator",
        )  # fmt: skip
    own = subject.candidates[0]
    own.plan = plain(explain(fused, find(GPU)).to_json())
    own.source = (place / "model_new.py").read_text()
    subject.title, subject.reference_source = path.stem, path.read_text()
    return subject


def write_index(subjects: list[Any]) -> None:
    """The index, with the columns of a sweep's."""
    from crucible.report.page.subject import Collection
    from crucible.report.page.write import index_html

    rows = [
        {"title": s.title, "problem": s.reference, "status": s.verdict, "race": s.race, "environment": s.environment,
         "reason": (s.candidates[0].reason or {}).get("message"), "seconds": {"judge": s.seconds}}
        for s in subjects
    ]  # fmt: skip
    html = index_html(Collection("gallery", subjects, rows), [f"{s.title}/report.html" for s in subjects])
    (GALLERY / "index.html").write_text(html)


# -- on a GPU


def race_all(
    wanted: list[Path], folder: Path, against: Sequence[str], *, quick: bool, simulated: bool, **options: Any
) -> int:
    """A record of every file of the gallery, from this machine's GPU: proofs beside each other, each race alone."""
    from crucible.race.record import digest
    from crucible.race.run import race

    folder.mkdir(parents=True, exist_ok=True)
    files = {path: (GALLERY / path.stem / "model_new.py").relative_to(ROOT) for path in wanted}
    if simulated:
        made = {path: json.loads((GALLERY / path.stem / "proof.json").read_text()) for path in wanted}
        stale = [p.stem for p, proof in made.items() if proof["of"] != mark(files[p].read_text())]
        if stale:
            raise SystemExit(f"make_gallery: proofs of other texts: {', '.join(stale)}")
    else:
        with ProcessPoolExecutor(PROOFS, get_context("spawn")) as pool:
            made = dict(zip(wanted, pool.map(proof_on_gpu, wanted, [quick] * len(wanted))))
    worst = 0
    for path, file in files.items():
        say(f"{path.stem}: {made[path]['verdict']} in {made[path]['seconds']:.0f} s")
        known = {digest(file): made[path]}
        result = race(path.relative_to(ROOT), [file], against=against, seed=SEED, proofs=known, **options)
        (folder / f"{path.stem}.json").write_text(result.to_text())
        say(f"{path.stem}: exit code {result.exit_code}, {result.seconds:.0f} s {result.untimed or ''}")
        worst = max(worst, result.exit_code)
    return worst


def proof_on_gpu(path: Path, quick: bool) -> Any:
    from crucible.prove.proof import plain
    from crucible.prove.run import prove

    file = GALLERY / path.stem / "model_new.py"
    names = (p.relative_to(ROOT) for p in (path, file))
    proof = prove(*names, device="cuda", seed=SEED, quick=quick, timeout=300.0)
    return plain(proof.to_json(sources=False))


def say(text: str) -> None:
    print(text, flush=True)


def chosen(names: list[str]) -> Iterator[Path]:
    known = {p.stem: p for p in problems()}
    for name in names or list(known):
        stem = re.sub(r"\.py$", "", Path(name).name)
        if stem not in known:
            raise SystemExit(f"make_gallery: no problem {stem!r}; there are {', '.join(known)}")
        yield known[stem]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help="problems by name [default: all of problems/*.py]")
    parser.add_argument("--race", type=Path, metavar="FOLDER", help="on a GPU: race the gallery's files into FOLDER")
    parser.add_argument("--records", type=Path, metavar="FOLDER", help="records of races to take")
    parser.add_argument("--quick", action="store_true", help="shorter proofs")
    parser.add_argument("--simulated", action="store_true", help="race with the gallery's own proofs, of the simulator")
    parser.add_argument("--train", action="store_true", help="race the training step too")
    parser.add_argument("--rounds", type=int, default=7, help="of a race [default: %(default)s]")
    parser.add_argument("--against", default=",".join(AGAINST), help="contenders of a race [default: %(default)s]")
    given = parser.parse_args()
    os.chdir(ROOT)
    wanted = list(chosen(given.names))
    if given.race is not None:
        options = {n: getattr(given, n) for n in ("quick", "simulated", "train", "rounds")}
        return race_all(wanted, given.race, given.against.split(","), **options)
    made = {path: make(path, given.records, given.quick) for path in wanted}
    whole = [p for p in problems() if (GALLERY / p.stem / "proof.json").is_file()]
    write_index([made[p] if p in made else subject_of(p, fused_now(p)) for p in whole])
    out_of_date = [line for p in wanted for line in stale_pages(p)]
    for line in out_of_date:
        say(f"stale: {line}")
    return 1 if out_of_date else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    sys.exit(main())
