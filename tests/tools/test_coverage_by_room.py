import json
from pathlib import Path

from tools.coverage_by_room import files_of, rooms_of, table


def test_files_are_counted_by_room(tmp_path: Path):
    counts = {
        "/ingot/src/ingot/ops/core/unary.py": (10, 9),
        "src/ingot/ops/build.py": (10, 10),
        "venv/ingot/frontends/onnx/walk.py": (30, 0),
        "src/ingot/frontends/jax/jit.py": (1, 1),
        "src/ingot/cli.py": (0, 0),
    }
    entries = {k: {"summary": {"num_statements": n, "covered_lines": r}} for k, (n, r) in counts.items()}
    (tmp_path / "c.json").write_text(json.dumps({"files": entries}))
    rooms = rooms_of(files_of(tmp_path / "c.json"))
    assert rooms == {".": (0, 0), "frontends/jax": (1, 1), "frontends/onnx": (30, 0), "ops": (20, 19)}
    assert "| ops | 20 | 95.0% |" in table(rooms) and table(rooms).endswith("| all | 51 | 39.2% |")
