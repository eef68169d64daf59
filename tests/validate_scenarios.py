# SPDX-License-Identifier: Apache-2.0
"""Validates every scenario file against the published JSON Schema, and the schema itself."""
import json
import pathlib
import sys

try:
    import jsonschema
except ImportError:
    print("skipped: the Python module jsonschema (Debian: python3-jsonschema) is not installed")
    sys.exit(77)


def main() -> int:
    schema = json.loads(pathlib.Path(sys.argv[1]).read_text())
    files = sorted(pathlib.Path(sys.argv[2]).glob("*.json"))
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    problems = [
        f"{file.name}: {error.json_path}: {error.message}"
        for file in files
        for error in validator.iter_errors(json.loads(file.read_text()))
    ]

    # A validator that takes anything would find nothing.
    good = json.loads(files[0].read_text())
    for key, wrong in {"protocol": "Z", "unheard": 1, "faults": [{"act": "drop"}], "version": 2}.items():
        if validator.is_valid({**good, key: wrong}):
            problems.append(f"the schema takes {key} = {wrong!r}")
    if validator.is_valid({key: value for key, value in good.items() if key != "expect"}):
        problems.append("the schema takes a scenario without expect")

    print("\n".join(problems) or f"{len(files)} scenarios are valid")
    return 1 if problems or not files else 0


if __name__ == "__main__":
    sys.exit(main())
