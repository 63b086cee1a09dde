import json

from benchmarks import dynamics


def test_quick_run_writes_numbers(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("SPECTRAL_PARAM_DATA", raising=False)
    output = tmp_path / "dynamics.json"
    monkeypatch.setattr("sys.argv", ["dynamics", "--quick", "--output", str(output)])
    dynamics.main()
    results = json.loads(output.read_text())
    texture = results["texture, n = 20, 60 frames, seed 0"]
    ratios = texture["ratio"]
    assert 1 <= ratios["fit_stable"] <= texture["closed_form_ratio"] < ratios["clipping"]
    assert texture["radius_minus_one"] <= 1e-12
    assert texture["cpu_seconds"] > 0
    for kind in ("discrete", "continuous"):
        found = results[f"random problems, {kind} time"]
        assert found["problems"] == 10
        assert found["bound_broken"] == found["lost"] == 0
    assert "clipping" in capsys.readouterr().out
