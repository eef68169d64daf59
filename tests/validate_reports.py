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


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenview", required=True)
    parser.add_argument("--source", required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    golden = str(arguments.source / "data/golden/qwen3_next_tiny.h5")
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
        "matrix-shard": (0, ["check", "--matrix=quick", golden, "--tp", "2", "--shard", "1/3"]),
        "matrix-nothing": (3, ["check", "--matrix=quick", golden, "--case", "nowhere"]),
        "run": (1, [*run, "--tp", "4", "--draft-steps", "1"]),
        "run-stages": (0, ["run", "--tp", "2", "--pp", "2", "--tokens", "5"]),
        "run-numeric": (1, [*run, "--tp", "2", "--draft-steps", "1", "--numeric"]),
        "repro": (1, ["repro", "vllm-48429"]),
        "repro-repaired": (0, ["repro", "vllm-48429", "--repaired"]),
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
        expected = {"tap", "case", "finding", "view", "collective", "cost", "fault", "summary"}
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
