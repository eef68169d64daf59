# SPDX-License-Identifier: Apache-2.0
"""Validates what the program prints and writes against the published schemas: records of every verb,
JUnit XML and SARIF. Where $TOKENVIEW_PUBLISHED_SCHEMAS names a folder with junit-10.xsd and
sarif-schema-2.1.0.json as Jenkins and OASIS publish them, against those too."""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

try:
    import jsonschema
except ImportError:
    print("skipped: the Python module jsonschema (Debian: python3-jsonschema) is not installed")
    sys.exit(77)
if shutil.which("xmllint") is None:
    print("skipped: xmllint (Debian: libxml2-utils) is not installed")
    sys.exit(77)

problems = []


def claim(holds: bool, problem: str) -> None:
    if not holds:
        problems.append(problem)


def validator_of(path: pathlib.Path):
    schema = json.loads(path.read_text())
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    return kind(schema, format_checker=jsonschema.FormatChecker())


def check_records(validator, name: str, text: str) -> list:
    records = [json.loads(line) for line in text.splitlines()]
    claim(bool(records), f"{name}: no record")
    found = [
        f"{name}: line {i + 1}: {error.json_path}: {error.message}"
        for i, record in enumerate(records)
        for error in validator.iter_errors(record)
    ]
    problems.extend(found[:5])
    return records


def hand_made(kind: str, **keys) -> dict:
    common = ("file", "case", "step", "tap", "rank", "observed", "allowed", "verdict")
    return {"schema": "tokenview.report", "version": 1, "kind": kind, **dict.fromkeys(common), **keys}


def failing_records() -> str:
    """What no shipped golden file gives: taps that fail, with names that formats could trip over."""
    case = "a \"case\" <&> ü, 100%: ::x"
    tap = {"file": "dir/ä b.h5", "case": case, "step": "target", "values": 4, "failed": True}
    records = [
        hand_made("tap", **{**tap, "failed": False}, tap="model.embed_tokens", verdict="match", observed=0.0,
                  allowed=1e-4, metric="max_abs", row_ratios=[0, 0.5]),
        hand_made("tap", **tap, tap="model.norm", verdict="difference", observed="nan", allowed=1e-4,
                  metric="not_finite", max_abs="nan", relative_l2="inf", row_ratios=["nan", 1.5],
                  detail="]]> \u0001 \ud83d\ude00 | `code` **bold**\nsecond line"),
        hand_made("tap", **tap, tap="mtp.fc", verdict="missing", detail="the program does not make it"),
        hand_made("case", file=tap["file"], case=case, step="target", tap="model.norm", verdict="difference",
                  observed="nan", allowed=1e-4, metric="not_finite", cases=1, taps=3, values=12, failed=2,
                  ties=0, by_float64=0, seconds=0.25),
        hand_made("finding", file="broken.h5", verdict="error", detail="broken.h5: is truncated"),
        hand_made("summary", verdict="error", verb="check", cases=1, taps=3, values=12, failed=2, ties=0,
                  by_float64=0, seconds=0.25, files=1, errors=1),
    ]
    return "".join(json.dumps(record) + "\n" for record in records)


def check_xml(schema: pathlib.Path, path: pathlib.Path) -> bool:
    command = ["xmllint", "--noout", "--nonet", "--schema", str(schema), str(path)]
    return subprocess.run(command, capture_output=True).returncode == 0


def check_sarif(validator, log: dict, name: str) -> None:
    problems.extend(f"{name}: {e.json_path}: {e.message}" for e in list(validator.iter_errors(log))[:5])
    for run in log["runs"]:
        rules = run["tool"]["driver"]["rules"]
        for result in run["results"]:  # 3.27.6: the index is that of the rule of this id
            claim(rules[result["ruleIndex"]]["id"] == result["ruleId"], f"{name}: a rule's index is wrong")
        claim(len({rule["id"] for rule in rules}) == len(rules), f"{name}: a rule is there twice")


def check_pictures(tokenview: str, folder: pathlib.Path) -> None:
    """A trace as https://perfetto.dev reads it, and a layer as Graphviz and XML readers do."""
    for label, ranks in (("run", 4), ("run-stages", 4), ("repro", 2)):
        trace, svg, dot = (folder / f"{label}.{end}" for end in ("json", "svg", "dot"))
        ended = subprocess.run([tokenview, "report", str(folder / f"{label}.jsonl"), "--trace", str(trace), "--svg", str(svg),
                                "--dot", str(dot)], capture_output=True, text=True)
        if ended.returncode > 1:
            problems.append(f"{label}: pictures: {ended.stderr}")
            continue
        events = json.loads(trace.read_text())["traceEvents"]
        slices, flows = {}, {}
        for event in events:
            claim({"ph", "pid", "tid"} <= event.keys() and event["ph"] in "MXstfi", f"{label}: {event} is no event of a trace")
            if event["ph"] == "X":
                claim(event["dur"] > 0, f"{label}: a slice without a length")
                slices.setdefault(event["pid"], []).append((event["ts"], event["ts"] + event["dur"]))
            elif event["ph"] in "stf":
                flows.setdefault(event["id"], []).append(event)
        claim(sorted(slices) == list(range(ranks)), f"{label}: slices of processes {sorted(slices)}, expected {ranks} ranks")
        names = {event["pid"] for event in events if event["ph"] == "M" and event["name"] == "process_name"}
        claim(names == set(slices), f"{label}: processes {names} have names")
        for of_rank in slices.values():
            claim(all(a[1] <= b[0] for a, b in zip(of_rank, of_rank[1:])), f"{label}: slices of a rank overlap")
        claim(bool(flows), f"{label}: no flows")
        for flow in flows.values():
            phases = "".join(event["ph"] for event in flow)
            claim(phases[0] == "s" and phases[-1] == "f" and set(phases[1:-1]) <= {"t"}, f"{label}: a flow of {phases}")
            claim(all(a["ts"] < b["ts"] for a, b in zip(flow, flow[1:])), f"{label}: a flow goes back")
            claim(all(any(begin <= e["ts"] <= end for begin, end in slices[e["pid"]]) for e in flow),
                  f"{label}: a flow ends outside of every slice")
        well_formed = subprocess.run(["xmllint", "--noout", "--nonet", str(svg)], capture_output=True)
        claim(well_formed.returncode == 0, f"{svg.name}: {well_formed.stderr}")
        claim(f"rank {ranks // (2 if label == 'run-stages' else 1) - 1}" in svg.read_text(), f"{svg.name}: ranks are missing")
        if shutil.which("dot"):
            drawn = subprocess.run(["dot", "-Tsvg", str(dot)], capture_output=True, text=True)
            claim(drawn.returncode == 0 and not drawn.stderr, f"{dot.name}: {drawn.stderr}")


def check_action(arguments, folder: pathlib.Path, golden: str) -> None:
    """The shell of the GitHub action, without GitHub."""
    script = arguments.source / ".github/actions/tokenview/run.sh"

    def run(words: list, **more) -> int:
        where = folder / "action"
        shutil.rmtree(where, ignore_errors=True)
        variables = {"TOKENVIEW": arguments.tokenview, "ARGUMENTS": "\n".join(words) + "\n", "FOLDER": str(where),
                     "GITHUB_STEP_SUMMARY": str(folder / "summary.md"), "GITHUB_OUTPUT": str(folder / "output"), **more}
        return subprocess.run(["bash", str(script)], env={**os.environ, **variables}, capture_output=True).returncode

    bad = ["run", "--protocol", "B", "--tp", "4", "--ep", "--tokens", "10", "--draft-steps", "1"]
    claim(run(["check", golden, "--only", "one/target"]) == 0, "the action fails where everything matches")
    written = {path.name for path in (folder / "action").iterdir()}
    claim(written == {"result.jsonl", "report.html", "junit.xml", "report.sarif"}, f"the action writes {written}")
    claim("passes" in (folder / "summary.md").read_text(), "the action writes no step summary")
    claim(run(bad) == 1, "the action does not fail where a finding is new")
    claim(run(bad, BASELINE=str(folder / "known.json")) == 0, "the action fails where the finding is known")
    claim(run(["check", golden, "--unheard"]) == 2, "the action passes a wrong command line")
    claim(run(["check", golden, "--only", "nowhere"]) == 3, "the action passes where nothing is compared")
    claim(run(["check", str(arguments.source / "README.md")]) == 2, "the action passes an unreadable file")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenview", required=True)
    parser.add_argument("--source", required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    golden = str(arguments.source / "data/golden/qwen3_next_tiny.h5")
    engine = arguments.source / "data/engine"
    schemas = arguments.source / "tests/schemas"
    validator = validator_of(arguments.source / "docs/report-schema.json")

    # Each with the exit code that it ends with.
    run = ["run", "--protocol", "B", "--ep", "--tokens", "10"]
    commands = {
        "check": (0, ["check", golden]),
        "check-v": (0, ["check", "-v", golden, "--only", "one/"]),
        "check-bf16": (0, ["check", golden.replace("tiny", "bf16"), "--only", "model.norm"]),
        "check-nothing": (3, ["check", golden, "--only", "nowhere"]),
        "check-unreadable": (2, ["check", str(arguments.source / "README.md")]),
        "matrix": (0, ["check", "--matrix=quick", golden, "--tp", "1,2", "--dp", "1"]),
        "matrix-v": (0, ["check", "--matrix=full", "-v", golden, "--tp", "2", "--case", "one"]),
        "matrix-bf16": (0, ["check", "--matrix=quick", golden.replace("tiny", "bf16"), "--tp", "2", "--dp", "1"]),
        "matrix-shard": (0, ["check", "--matrix=quick", golden, "--tp", "2", "--shard", "1/3"]),
        "matrix-nothing": (3, ["check", "--matrix=quick", golden, "--case", "nowhere"]),
        "run": (1, [*run, "--tp", "4", "--draft-steps", "1"]),
        "run-stages": (0, ["run", "--tp", "2", "--pp", "2", "--tokens", "5"]),
        "run-numeric": (1, [*run, "--tp", "2", "--draft-steps", "1", "--numeric"]),
        "repro": (1, ["repro", "vllm-48429"]),
        "repro-repaired": (0, ["repro", "vllm-48429", "--repaired"]),
        "repairs": (0, ["repro", "--repairs"]),
        "shrink": (1, ["shrink", "vllm-48429"]),
        "info": (0, ["info", "-vv", golden, str(engine / "dump.rank0.h5")]),
        "info-unreadable": (2, ["info", golden, str(arguments.source / "README.md")]),
        "diff": (0, ["diff", str(engine / "golden.h5"), *map(str, sorted(engine.glob("dump.rank*.h5")))]),
        "diff-lost-rank": (1, ["diff", str(engine / "golden.h5"), str(engine / "dump.rank0.h5")]),
        "cost": (0, ["cost"]),
        "cost-one": (0, ["cost", "--tp", "1"]),
        "affected": (1, "affected --engine vllm-0.27.1 --model qwen3.5-35b --tp 2 --dp 2 --ep --draft-steps 2".split()),
        "affected-clean": (0, "affected --engine vllm-0.27.1 --model qwen3.5-35b".split()),
        "mutants": (0, ["sweep", "--mutants"]),
        "sweep": (0, ["sweep", "--shard", "1/200"]),
        "devices": (0, ["devices"]),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        kinds = set()
        results = []
        for label, (code, command) in commands.items():
            ended = subprocess.run([arguments.tokenview, *command, "--format", "jsonl"], capture_output=True, text=True)
            claim(ended.returncode == code, f"{label}: exit {ended.returncode}, expected {code}: {ended.stderr[:300]}")
            records = check_records(validator, label, ended.stdout)
            kinds |= {record["kind"] for record in records}
            claim(bool(records) and records[-1]["kind"] == "summary" and "verb" in records[-1], f"{label}: no last summary")
            results.append(folder / f"{label}.jsonl")
            results[-1].write_text(ended.stdout)
        expected = {"start", "tap", "case", "finding", "view", "collective", "blame", "repair", "cost", "fault", "file", "step", "dataset",
                    "summary"}
        claim(expected <= kinds, f"kinds {sorted(expected - kinds)} were never printed")

        results.append(folder / "failing.jsonl")
        results[-1].write_text(failing_records())
        check_records(validator, "failing", results[-1].read_text())

        # A schema that takes anything would find nothing.
        good = json.loads((folder / "run.jsonl").read_text().splitlines()[-1])
        for key, wrong in {"version": 2, "verb": "walk", "tp": "four", "unheard": 1, "rank": -1}.items():
            claim(not validator.is_valid({**good, key: wrong}), f"the schema takes {key} = {wrong!r}")
        claim(not validator.is_valid({k: v for k, v in good.items() if k != "tap"}), "the schema takes no tap")

        known = folder / "known.json"
        report = [arguments.tokenview, "report", *map(str, results)]
        ended = subprocess.run([*report, "--write-baseline", str(known), "--reason", "old", "--expires", "2999-01-01"],
                               capture_output=True, text=True)
        claim(ended.returncode == 2, f"report: exit {ended.returncode}, expected 2 of unreadable input: {ended.stderr}")
        published = os.environ.get("TOKENVIEW_PUBLISHED_SCHEMAS")
        sarif_schemas = [schemas / "sarif.json"] + ([pathlib.Path(published) / "sarif-schema-2.1.0.json"] if published else [])
        junit_schemas = [schemas / "junit.xsd"] + ([pathlib.Path(published) / "junit-10.xsd"] if published else [])
        for label, options, code in (("new", [], 2), ("known", ["--baseline", str(known)], 0)):
            junit, sarif = folder / f"{label}.xml", folder / f"{label}.sarif"
            ended = subprocess.run([*report, *options, "--junit", str(junit), "--sarif", str(sarif)],
                                   capture_output=True, text=True)
            claim(ended.returncode == code, f"report of {label}: exit {ended.returncode}, expected {code}: {ended.stdout}")
            if not sarif.exists():
                break
            for schema in junit_schemas:
                claim(check_xml(schema, junit), f"{junit.name}: is not valid by {schema.name}")
            log = json.loads(sarif.read_text())
            for schema in sarif_schemas:
                check_sarif(validator_of(schema), log, f"{sarif.name} by {schema.name}")
            suppressed = [bool(result.get("suppressions")) for result in log["runs"][0]["results"]]
            claim(suppressed and all(s == (label == "known") for s in suppressed), f"{label}: suppressions are wrong")

        if problems:
            print("\n".join(problems))
            return 1
        check_pictures(arguments.tokenview, folder)
        check_action(arguments, folder, golden)
        text = junit.read_text()
        for wrong in (text.replace("<testcase ", "<testcase file=\"x\" ", 1), text.replace("classname", "class", 1)):
            (folder / "wrong.xml").write_text(wrong)
            for schema in junit_schemas:
                claim(not check_xml(schema, folder / "wrong.xml"), f"{schema.name} takes a wrong test")
        for key in ("version", "runs"):
            wrong = {k: v for k, v in log.items() if k != key}
            for schema in sarif_schemas:
                claim(not validator_of(schema).is_valid(wrong), f"{schema.name} takes a log without {key}")

    print("\n".join(problems) or f"records of {len(commands)} commands, JUnit and SARIF are valid"
          + (" by the published schemas too" if published else ""))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
