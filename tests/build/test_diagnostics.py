"""From compiler output to the user's line."""

from crucible.build.diagnostics import explain

TYPO = """\
/cache/pch/x/crucible_torch.h: note: something
candidate.py: In function ‘at::Tensor f(at::Tensor)’:
candidate.py:12:9: error: ‘torhc’ has not been declared
   12 |   auto y = torhc::empty_like(x);
      |         ^~~~~
candidate.py:13:3: error: another
"""

IN_HEADER = """\
In file included from /x/torch/include/ATen/core/Tensor.h:3,
                 from candidate.py:4:
/x/torch/include/ATen/core/TensorBase.h:700:5: error: static assertion failed: no
"""

SHIM = """\
In file included from candidate.py:3:
/x/crucible/sim/include/cudnn.h:1:2: error: #error "crucible simulator: cuDNN is not simulated"
    1 | #error "crucible simulator: cuDNN is not simulated"
"""


def test_first_error_in_the_users_file(tmp_path):
    (tmp_path / "candidate.py").write_text("\n" * 11 + "  auto y = torhc::empty_like(x);\n")
    error = explain(1, TYPO, str(tmp_path))
    assert (error.kind, error.file, error.line) == ("compile_error", "candidate.py", 12)
    assert "torhc" in error.message and "‘" not in error.message
    assert error.source_line.strip() == "auto y = torhc::empty_like(x);"
    assert len(str(error).splitlines()) <= 3


def test_error_inside_a_header_points_at_the_line_that_asked():
    error = explain(1, IN_HEADER)
    assert (error.file, error.line) == ("candidate.py", 4)
    assert "static assertion" in error.message


def test_missing_library_is_a_named_unsupported_feature():
    error = explain(1, SHIM)
    assert error.kind == "unsupported_feature"
    assert error.message == "cuDNN is not simulated"
    assert (error.file, error.line) == ("candidate.py", 3)


def test_out_of_memory_and_silence():
    assert "memory" in explain(-9, "").message
    assert "exit code 3" in explain(3, "odd").message


def test_round_trip():
    error = explain(1, TYPO)
    again = type(error).from_json(error.to_json())
    assert str(again) == str(error)
