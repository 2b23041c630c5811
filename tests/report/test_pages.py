"""Pages: everything that a record says is on them, they need nothing else, and hostile text stays text."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import example_records as records
import pytest
from typer.testing import CliRunner

from crucible.cli import app
from crucible.prove.proof import Finding, plain
from crucible.report.page.figure import VARIABLES
from crucible.report.page.files import report, slugs
from crucible.report.page.plan_section import kernel_times
from crucible.report.page.subject import RecordError, Subject, of_document, read
from crucible.report.page.write import page_html, page_of

pytestmark = pytest.mark.quick
runner = CliRunner()
VOID = {"meta", "link", "br", "hr", "img", "input", "use", "path", "rect", "image"}


class Structure(HTMLParser):
    """Opened and closed elements, with what a page must have."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.pictures: list[dict] = []
        self.heads = 0
        self.tables = self.captions = 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids += [given["id"]] if "id" in given else []
        self.addresses += [given[k] for k in ("href", "src", "xlink:href", "action") if k in given]
        if tag == "svg":
            self.pictures.append(given)
        if tag == "th" and "scope" not in given:
            self.wrong.append(f"th without scope: {given}")
        self.tables += tag == "table"
        self.captions += tag == "caption"
        self.heads += tag == "h1"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> closes nothing")


def written(document, tmp_path: Path, **options) -> str:
    path = tmp_path / "record.json"
    path.write_text(json.dumps(plain(document)))
    return report(path, tmp_path / "page.html", **options)[0].path.read_text()


def check(text: str) -> Structure:
    found = Structure(text)
    assert found.wrong == [] and found.open == []
    assert len(found.ids) == len(set(found.ids)), [i for i in found.ids if found.ids.count(i) > 1]
    assert [a for a in found.addresses if not a.startswith(("#", "data:", "../", "sweep_pages/"))] == []
    assert "@import" not in text and "url(http" not in text
    assert found.heads == 1 and found.tables == found.captions
    assert all(p.get("role") == "img" and p.get("aria-label") for p in found.pictures)
    assert not any(colour in text for colour in VARIABLES), "a stand-in colour was not replaced"
    return found


def order(text: str, *words: str) -> None:
    places = [text.index(w) for w in words]
    assert places == sorted(places), list(zip(words, places))


def test_a_proof(tmp_path):
    text = written(records.proof().to_json(), tmp_path)
    check(text)
    order(text, ">PROVEN<", "new.py against model.py (sim, 4 s)", "The race", "Errors, beside eager",
          "What was checked", "The candidate", "Run it again")  # fmt: skip
    assert "crucible prove model.py new.py --device sim --seed 3 --quick" in text
    assert "seed 3, a quick proof" in text
    assert "0.67" in text and "2.00e-07" in text  # of what is allowed, and an error
    assert 'class="k">__global__' in text and "0123456789abcdef" in text


def test_a_race_with_a_plan(tmp_path, plan):
    text = written(records.race(plan).to_json(), tmp_path)
    found = check(text)
    order(text, ">PROVEN<", "The plan", "x = self.linear(x)", "The race", "2.50 x eager (faster)", "Roofline",
          "Errors, beside eager", "The generated CUDA", "Run it again")  # fmt: skip
    assert "failed: torch.compile, max-autotune: it took too long" in text
    assert "0.300 ms" in text  # of a kernel
    assert len(found.pictures) >= 2 * 4  # plans, bars, roofline, errors; wide and narrow
    assert "crucible race model.py new.py --against eager,compile --rounds 2 --seed 3" in text


def test_where_it_is_wrong(tmp_path):
    text = written(records.refuted().to_json(), tmp_path)
    check(text)
    order(text, ">REFUTED<", "forward / wrong_values", "Where it is wrong", "The race")
    assert "The plane of the worst element" in text and "<image" in text
    assert "8 of 48 cells" in text  # a row of eight in a plane of six by eight
    assert "2 of 8 cells" in text  # a channel of four in both samples


def test_the_source_line_is_marked(tmp_path):
    text = written(records.out_of_bounds().to_json(), tmp_path)
    check(text)
    assert "new.py, line 7, in kernel twice, block (0, 0, 0), thread (24, 0, 0)" in text
    marked = re.findall(r'<span class="l marked">(.*?)</span>', text, flags=re.S)
    assert len(marked) == 2  # where it is wrong, and in the listing
    assert all("y[i]" in re.sub(r"<[^>]*>", "", m) for m in marked)


def test_nothing_of_a_candidate_is_markup(tmp_path):
    bad = "</pre><script>alert(1)</script>"
    finding = Finding("raises", f"new.py:3 says {bad}", {"case": bad})
    made = records.proof(candidate=f"{bad}.py", verdict="refuted", reason=finding,
                         sources={"candidate": f"# {bad}\n", "reference": bad})  # fmt: skip
    made.checks[0].evidence = [bad]
    text = written(made.to_json(), tmp_path)
    check(text)
    assert "<script" not in text and "&lt;script&gt;" in text


def test_a_refutation_by_the_race_counts(plan):
    made = records.race(plan)
    made.passes[0].rows[3].end("refuted", "faster than light")
    subject = of_document(made.to_json(), Path("r.json"))
    assert isinstance(subject, Subject) and subject.verdict == "refuted"
    assert page_of(subject).reasons[0].text == "faster than light"


def test_several_candidates_have_a_section_each(tmp_path, plan):
    made = records.race(plan)
    other = records.race().candidates[0]
    other.name, other.file, other.verdict, other.reason = "other", "other.py", "unjudged", "no idea"
    other.proof = None
    made.candidates.append(other)
    text = written(made.to_json(), tmp_path)
    check(text)
    assert ">COULD NOT BE JUDGED<" in text and "no idea" in text and "The plan of new" in text


def test_kernels_are_matched_by_their_stage(plan):
    subject = of_document(records.race(plan).to_json(), Path("r.json"))
    one = next(p for p in plan["passes"] if p["direction"] == "inference")
    own = subject.candidates[0]
    own.plan = plan
    assert kernel_times(subject, own, one) == {k["name"]: 0.3 for k in one["kernels"]}
    backward = next(p for p in plan["passes"] if p["direction"] == "backward")
    assert kernel_times(subject, own, backward) == {}  # it did not run
    subject.race["passes"][0]["what"] = "training"
    forward = next(p for p in plan["passes"] if p["direction"] == "forward")
    both = {k["name"] for k in forward["kernels"]} & {k["name"] for k in backward["kernels"]}
    assert both and not both & set(kernel_times(subject, own, forward))  # whose time it is cannot be told


def test_a_sweep(store, tmp_path):
    pages = report(store, tmp_path / "sweep.html")
    assert [p.title for p in pages[1:]] == ["a_wrong", "b/fast", "c<odd> name"]
    assert (pages[0].word, pages[0].verdict) == ("1 of 3 proven", "refuted")
    text = pages[0].path.read_text()
    found = check(text)
    assert {a for a in found.addresses if a.endswith(".html")} == {
        "sweep_pages/a_wrong.html", "sweep_pages/b_fast.html", "sweep_pages/c_odd_name.html"}  # fmt: skip
    order(text, "1 of 3 proven", "All problems", "a_wrong", "b/fast", "c&lt;odd&gt; name")
    for page in pages[1:]:
        check(page.path.read_text())
    assert "control flow at &lt;line 3&gt;" in pages[3].path.read_text()


def test_of_several_runs_the_newest_row_counts(store):
    from crucible.sweep.store import Store

    later = records.row("a_wrong.py", "proven", records.race())
    Store(store).append({**later, "key": "another"})
    assert [s.verdict for s in read(store).subjects] == ["proven", "proven", "not fused"]


def test_the_summary_of_a_sweep_leads_to_its_store(store, tmp_path):
    document = tmp_path / "summary.json"
    document.write_text(json.dumps({"schema": 1, "kind": "sweep", "store": "elsewhere/sweep"}))
    assert len(read(document).rows) == 3


@pytest.mark.parametrize(("text", "says"), [
    ("{", "is no JSON"), ("[]", "no record of crucible"), ('{"schema": 2, "kind": "race"}', "another schema"),
    ('{"schema": 1, "kind": "doctor"}', "'doctor'"), ('{"schema": 1, "kind": "race"}', "missing or broken"),
])  # fmt: skip
def test_what_is_no_record(tmp_path, text, says):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=says):
        read(path)


@pytest.mark.parametrize("change", [{"verdict": "maybe"}, {"checks": 3}, {"checks": [{"name": "forward"}]}])
def test_a_broken_part_is_a_sentence(tmp_path, change):
    path = tmp_path / "r.json"
    path.write_text(json.dumps({**plain(records.proof().to_json()), **change}))
    with pytest.raises(RecordError, match="missing or broken"):
        report(path, tmp_path / "p.html")
    assert not (tmp_path / "p.html").exists()


def test_records_of_before_kinds_were_written(plan):
    old = records.proof().to_json()
    del old["kind"], old["sources"]
    assert of_document(old, Path("r")).verdict == "proven"
    fuse = {"schema": 1, "file": "new.py", "plan": {**plan, "operators": []}, "proof": old, "proofs": []}
    subject = of_document(fuse, Path("r"))
    assert "The plan" in page_html(subject) and subject.candidates[0].source is None


def test_names_of_pages_differ():
    assert slugs(["a/b", "a b", "a_b", "..", ""]) == ["a_b", "a_b_2", "a_b_3", "page", "page_2"]


# -- the command


def test_the_command(tmp_path):
    record, page, pages = tmp_path / "r.json", tmp_path / "p.html", tmp_path / "pages.json"
    record.write_text(records.proof().to_text())
    done = runner.invoke(app, ["report", str(record), "-o", str(page), "--json", str(pages)])
    assert done.exit_code == 0, done.output
    assert "PROVEN model: " in done.output and "\x1b" not in done.output
    listed = json.loads(pages.read_text())
    assert (listed["schema"], listed["kind"]) == (1, "report")
    assert listed["pages"] == [{"file": str(page), "title": "model", "verdict": "proven", "word": "PROVEN"}]
    again = runner.invoke(app, ["report", str(record), "-o", str(page)])
    assert again.exit_code == 0  # its own page may be written over


@pytest.mark.parametrize("change", ["missing", "foreign", "folder", "nowhere", "other folder"])
def test_mistakes_are_sentences(tmp_path, change):
    record, page = tmp_path / "r.json", tmp_path / "p.html"
    record.write_text(records.proof().to_text())
    if change == "missing":
        record.unlink()
    elif change == "foreign":
        page.write_text("<html>mine</html>")
    elif change == "folder":
        page.mkdir()
    elif change == "nowhere":
        page = tmp_path / "no" / "p.html"
    else:
        record = tmp_path
    done = runner.invoke(app, ["report", str(record), "-o", str(page)])
    assert done.exit_code == 2 and "crucible report: " in done.output and "Traceback" not in done.output
    if change == "foreign":
        assert page.read_text() == "<html>mine</html>"
        assert runner.invoke(app, ["report", str(record), "-o", str(page), "--force"]).exit_code == 0


def test_other_commands_do_not_load_what_pages_need():
    code = "import sys, crucible, crucible.cli, crucible.report.race_table; " \
           "print([m for m in ('matplotlib', 'jinja2.environment', 'pygments.lexers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("[]", "['jinja2.environment']")  # torch itself may load jinja2
