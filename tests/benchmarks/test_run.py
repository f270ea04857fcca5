"""The race against peers, with fake ones: what is started, what is read, what is told."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import engines, plot, run
from benchmarks.engines import Engine, Failed, Told, Work

WORK = Work(512, 64, 2, 3)

PEER = """
import json, sys
rates = {"pp8": 20.0, "tg4@8": 5.0} if "--flash-attn" in sys.argv else {"pp8": 10.0, "tg4@8": 8.0}
print("some chatter")
print(json.dumps({"engine": "fake 1.0", "argv": sys.argv[1:], **rates}))
"""
IK = """#!{python}
import sys
fa = sys.argv[sys.argv.index("-fa") + 1]
assert sys.argv[sys.argv.index("-rtr") + 1] == "1" and "f16" in sys.argv
assert sys.argv[sys.argv.index("-gp") + 1] == "8,4"
if fa == "1":
    sys.exit("out of luck")
print("ggml: some words")
print('''[
  {{ "build_commit": "abc", "reuse": , "test": "pp8", "samples_ns": [ 1, 2, 3 ],
    "samples_ts": [ 30.0, 10.0, 20.0 ] }},
  {{ "build_commit": "abc", "test": "tg4@pp8", "samples_ts": [ 4.0 ] }}
]''')
"""
OURS = """
import json, sys
a = sys.argv
one = "int8" == a[a.index("--activations") + 1]
lim = {"read": 10.0, "f32": 1.0, "int8": 8.0, "int16": 4.0, "pairs": 0.0}
tell = {"peak_bytes": 5e8, "pp": None, "tg": None, "pp_of_limit": None, "tg_of_limit": None}
if a[a.index("-n") + 1] == "0":
    assert "-d" not in a
    tell |= {"pp": 60.0 if one else 40.0, "pp_of_limit": 0.5}
else:
    assert a[a.index("-d") + 1] == "8"
    tell |= {"tg": 16.0 if one else 12.0, "tg_of_limit": 0.8}
print(json.dumps({**tell, "limits": lim}))
"""


def test_llama_bench_is_read_by_label() -> None:
    text = json.dumps([
        {"test": "pp512", "samples_ts": [100.0, 300.0, 200.0], "build_commit": "1a2b"},
        {"test": "tg64@pp512", "samples_ts": [50.0, 40.0, 60.0]},
        {"test": "tg64", "samples_ts": [900.0]},
    ])  # fmt: skip
    told = engines.parse_llama_bench(text, WORK)
    assert told.rates == {"pp512": 200.0, "tg64@512": 50.0}
    assert told.version == "ik_llama.cpp 1a2b"
    for bad in ("", "[]", json.dumps([{"test": "pp512", "samples_ts": [1.0]}])):
        with pytest.raises(Failed):
            engines.parse_llama_bench(bad, WORK)


@pytest.mark.parametrize("text", ["", "not json", "[1]", '{"pp512": 3}', '{"tg64@512": "x"}'])
def test_a_script_that_says_something_else(text: str) -> None:
    with pytest.raises(Failed):
        engines.parse_script(text, WORK)


def test_a_command_that_fails_is_told() -> None:
    with pytest.raises(Failed, match="status 3"):
        engines.output([sys.executable, "-c", "import sys; sys.exit(3)"])
    with pytest.raises(Failed):
        engines.output(["/no/such/program"])


def scripted(family: str, setting: str, *rounds: tuple[float, float] | None) -> Engine:
    told = iter(rounds)

    def go(path: str, work: Work) -> Told:
        found = next(told)
        if found is None:
            raise Failed("luck")
        return Told(dict(zip(work.tests, found, strict=True)))

    return Engine(family, setting, go)


def test_ratios_are_within_rounds_and_the_best_setting_counts() -> None:
    mine = scripted("ours", "int8x2", (10.0, 4.0), (40.0, 4.0), (20.0, 9.0))
    slow = scripted("peer", "a", (5.0, 3.0), (20.0, 3.0), (5.0, 3.0))
    fast = scripted("peer", "b", (4.0, 4.0), None, (10.0, 3.0))
    found = run.race("m", "m", WORK, [mine, slow, fast], 3)
    pp, tg = WORK.tests
    assert found.best("peer", pp) is fast and found.best("peer", tg) is fast
    assert found.ratios(mine, fast, pp) == [2.5, 2.0]
    assert found.ratios(mine, slow, tg) == [4 / 3, 4 / 3, 3.0]
    assert found.best("nobody", pp) is None and found.of_limit(mine, pp) is None


def test_order_turns_round() -> None:
    order: list[str] = []

    def entry(name: str) -> Engine:
        def go(path: str, work: Work) -> Told:
            order.append(name)
            return Told(dict.fromkeys(work.tests, 1.0))

        return Engine(name, "", go)

    run.race("m", "m", WORK, [entry("a"), entry("b")], 3)
    assert order == ["a", "b", "b", "a", "a", "b"]


def test_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "peer.py").write_text(PEER)
    (tmp_path / "ours.py").write_text(OURS)
    ik = tmp_path / "llama-bench"
    ik.write_text(IK.format(python=sys.executable))
    ik.chmod(0o755)
    model = tmp_path / "some.gguf"
    model.write_bytes(b"GGUF")
    monkeypatch.setattr(engines, "OURS", [sys.executable, str(tmp_path / "ours.py")])
    monkeypatch.setattr(run, "RESULTS", tmp_path / "RESULTS.md")
    monkeypatch.setattr(run, "PLOT", tmp_path / "results.svg")
    run.main([
        str(model), "--peers", "--peer-script", str(tmp_path / "peer.py"), "--ik", str(ik),
        "--work", "8,4", "--rounds", "2", "--threads", "2",
    ])  # fmt: skip
    text = (tmp_path / "RESULTS.md").read_text()
    rows = [[c.strip() for c in x.split("|")[1:-1]] for x in text.splitlines() if x[0:1] == "|"]
    assert [r[:5] for r in rows[2:]] == [
        ["some.gguf", "pp8", "int8x2", "40.0", "0.50"],
        ["some.gguf", "pp8", "int8", "60.0", "0.50"],
        ["some.gguf", "tg4@8", "int8x2", "12.0", "0.80"],
        ["some.gguf", "tg4@8", "int8", "16.0", "0.80"],
    ]  # fmt: skip
    assert rows[2][5:] == ["20.0 (fa 1)", "**2.00**", "2.00 2.00", "20.0 (fa 0)", "**2.00**",
                           "2.00 2.00"]  # fmt: skip
    assert rows[5][5:] == ["8.0 (fa 0)", "**2.00**", "2.00 2.00", "4.0 (fa 0)", "**4.00**",
                           "4.00 4.00"]  # fmt: skip
    assert "fake 1.0, ik_llama.cpp abc" in text and "read 10.0 GB/s" in text
    assert str(tmp_path) not in text
    assert "out of luck" in capsys.readouterr().err
    ElementTree.fromstring((tmp_path / "results.svg").read_text())
    assert "20.0 tok/s" in (tmp_path / "results.svg").read_text()


def test_the_plot_is_to_scale() -> None:
    bars = [plot.Bar("ours", 30.0, 0.75), plot.Bar("a < b", 10.0, 0.25)]
    root = ElementTree.fromstring(plot.svg([plot.Group("m & n", "pp8", bars)], "a title", "a note"))
    space = "{http://www.w3.org/2000/svg}"
    widths = [float(r.get("width", 0)) for r in root.iter(f"{space}rect") if r.get("x") == "250"]
    assert widths == pytest.approx([0.75 * 460, 0.25 * 460])
    said = {t.text for t in root.iter(f"{space}text")}
    assert {"m & n", "pp8", "a title", "a note", "limit", "a < b"} <= said


@pytest.mark.parametrize("words", [["m", "--work", "5"], ["m", "--peers"]])
def test_bad_options(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        run.options(words)
