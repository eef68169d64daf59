# SPDX-License-Identifier: Apache-2.0
"""Opens the page of `tokenview report --html` in headless Chromium: no error, nothing loaded from elsewhere, filters
and keys work, what it shows is what the records say, it fits a telephone, and the default matrix fits 5 MB.
--pictures FOLDER keeps screenshots."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import browser

MOST_BYTES = 5_000_000
READY = "document.documentElement?.dataset.ready === 'yes'"
problems = []


def claim(holds: bool, problem: str) -> None:
    if not holds:
        problems.append(problem)


def shown(value) -> str:
    """A number as the page writes it, from the six digits that it has."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    value = float(f"{value:.5e}")
    if value == 0:
        return "0"
    if abs(value) < 1e-3 or abs(value) >= 1e4:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa}e{int(exponent):+d}"
    return f"{value:#.3g}".rstrip(".")


def records_of(path: pathlib.Path) -> list:
    return [json.loads(line) for line in path.read_text().splitlines()]


def visible_rows(page) -> int:
    return page.run("document.querySelectorAll('.cases tbody tr').length")


def check_overview(page, results: dict) -> None:
    cases = [r for r in results["matrix"] if r["kind"] == "case"]
    total = len(cases) + len(results) - 1
    claim(visible_rows(page) == total, f"{visible_rows(page)} configurations are shown, expected {total}")
    claim(page.run("document.getElementById('counter').textContent") == f"{total} configurations", "the counter is wrong")
    cells = page.run("""[...document.querySelectorAll('.cases tbody tr')].map(row =>
        [row.querySelector('td.name a').textContent, row.cells[3].textContent, row.cells[4].textContent])""")
    of_page = {name: numbers for name, *numbers in cells}
    for case in cases:
        expected = [shown(case["observed"]), shown(case["allowed"])]
        claim(of_page.get(case["case"]) == expected, f"{case['case']}: {of_page.get(case['case'])}, the records say {expected}")

    first = page.run("document.querySelector('.cases tbody .badge').textContent")
    claim(first == "failed", f"the first configuration is {first}, expected one that failed")
    page.press("/")
    claim(page.run("document.activeElement.id") == "search", "/ does not lead to the search")
    page.call("Input.insertText", text="TP=2 ep dp=1 passed")
    expected = sum("tp=2" in c["case"] and " ep" in c["case"] and "dp=1" in c["case"] and c["verdict"] == "match" for c in cases)
    claim(visible_rows(page) == expected, f"the search leaves {visible_rows(page)}, expected {expected}")
    page.run("(() => { const s = document.getElementById('search'); s.value = ''; s.dispatchEvent(new Event('input')); s.blur(); })()")
    page.run("document.querySelector('[data-outcome=failed]').click()")
    claim(visible_rows(page) == 4, f"{visible_rows(page)} configurations failed, expected run, repro and two of diff")
    page.run("document.querySelector('[data-outcome=failed]').click()")
    page.run("(() => { const s = document.getElementById('verb'); s.value = 'repro'; s.dispatchEvent(new Event('change')); })()")
    claim(visible_rows(page) == 1, "the selection of a run does nothing")
    page.run("(() => { const s = document.getElementById('verb'); s.value = ''; s.dispatchEvent(new Event('change')); })()")
    claim(visible_rows(page) == total, "the filters do not let go")


def check_keys(page) -> None:
    page.press("j")
    page.press("j")
    page.press("k")
    claim(page.run("document.querySelectorAll('tr.here').length") == 1, "j and k mark no configuration")
    page.press("Enter")
    page.wait_for("location.hash.startsWith('#/case/')")
    failing = page.run("location.hash")
    page.press("n")
    page.wait_for("document.querySelector('h1 .badge')?.textContent === 'failed'")
    claim(page.run("location.hash") != failing, "n does not go on")
    page.press("Escape")
    page.wait_for("document.querySelector('.cases') !== null")
    page.press("?")
    claim(page.run("document.getElementById('help').open"), "? shows no keys")
    page.press("Escape")
    page.wait_for("!document.getElementById('help').open")
    dark = page.run("getComputedStyle(document.body).backgroundColor")
    page.press("t")
    claim(page.run("getComputedStyle(document.body).backgroundColor") != dark, "t changes no colour")
    page.press("t")


def open_case(page, name: str) -> None:
    page.run("location.hash = '#/'")
    page.wait_for("document.querySelector('.cases') !== null")
    link = f"[...document.querySelectorAll('.cases td.name a')].find(a => a.textContent === {json.dumps(name)})"
    page.run(f"{link}.click()")
    page.wait_for(f"document.querySelector('h1')?.textContent.startsWith({json.dumps(name)})")


def check_case(page, records: list, name: str) -> None:
    """The rows of every rank, and the numbers of every tap, of one configuration."""
    open_case(page, name)
    views = [r for r in records if r["kind"] == "view"]
    rows = page.run("""[...document.querySelectorAll('.map tbody tr:not(.call)')].map(row =>
        [row.cells[0].firstChild.textContent, [...row.querySelectorAll('.cell')].map(cell => cell.title)])""")
    expected = [[f"{view['step']}/{view['tap']}", view["rows"]] for view in views]
    claim(rows == expected, f"{name}: the map of rows is not that of the records")
    cells = page.run("""[...document.querySelectorAll('.map tbody tr:not(.call) .cell')].map(cell =>
        [cell.title, [...cell.children].map(i => i.textContent).join(',')])""")
    claim(all(title.strip("[]") == ("" if text == "none" else text) for title, text in cells), f"{name}: a cell shows other rows")
    calls = page.run("document.querySelectorAll('.map tr.call').length")
    claim(calls == sum(r["kind"] == "collective" for r in records), f"{name}: {calls} collectives are shown")
    taps = page.run("""[...document.querySelectorAll('.taps tbody tr')].map(row => [row.dataset.tap, row.cells[2].textContent,
        row.cells[3].textContent, row.querySelector('.heat')?.getAttribute('aria-label') ?? ''])""")
    expected = [[f"{r['step']}/{r['tap']}", shown(r["observed"]), shown(r["allowed"]),
                 f"error of {len(r['row_ratios'])} row{'' if len(r['row_ratios']) == 1 else 's'}" if r.get("row_ratios") else ""]
                for r in records if r["kind"] == "tap"]
    claim(sorted(taps) == sorted(expected) and taps, f"{name}: the numbers are not those of the records: "
          + str([pair for pair in zip(sorted(taps), sorted(expected)) if pair[0] != pair[1]][:2]))


def check_finding(page, records: list, name: str) -> None:
    open_case(page, name)
    first = next(r for r in records if r["kind"] == "finding")
    text = page.run("document.querySelector('.cause').textContent")
    for key in ("expected", "actual", "operation", "origin"):
        claim(first[key] in text, f"the first finding is without its {key}")
    held = page.run("[...document.querySelectorAll('#first-finding .cell')].map(cell => cell.title)")
    claim(first["actual"] in held, f"the marked tensor holds {held}, the finding says {first['actual']}")
    page.run("scrollTo(0, 0)")
    page.press("f")
    page.wait_for("(() => { const box = document.getElementById('first-finding').getBoundingClientRect(); "
                  "return box.top >= 0 && box.bottom <= innerHeight; })()")
    before = page.run("[...document.querySelectorAll('.map tr')].filter(r => r.offsetParent).length")
    page.run("document.getElementById('changes').click()")
    after = page.run("[...document.querySelectorAll('.map tr')].filter(r => r.offsetParent).length")
    claim(after < before, "'only where something changes' hides nothing")
    page.run("document.getElementById('changes').click()")


def diff_name(records: list) -> str:
    """What the page calls the first step of a diff."""
    first = next(r for r in records if r["kind"] == "tap" and r["first"])
    return f"{first['case']} of {records[-1]['label']}"


def check_diff(page, records: list) -> None:
    """A step of a dump: what each rank holds in its own column, what it should, what that is called and the repair."""
    taps = [r for r in records if r["kind"] == "tap"]
    first = next(r for r in taps if r["first"])
    open_case(page, diff_name(records))
    text = page.run("document.querySelector('.cause').textContent")
    claim(first["called"] in text, "the first difference of a diff is without its name")
    claim(first["repair"] in page.run("document.querySelector('.repair')?.textContent ?? ''"), "the repair of a diff is not shown")
    due = page.run("""[...document.querySelectorAll('.cause .due')][0]?.querySelectorAll('tbody tr').length ?? 0""")
    claim(due == 4, f"the first difference shows {due} ranks, expected 4")
    for column, key in ((1, "held"), (2, "required")):
        cells = page.run(f"[...document.querySelectorAll('.cause .due')[0].querySelectorAll('tbody tr')].map(row => row.cells[{column}].querySelector('.cell').title)")
        claim(" ".join(cells) == first[key], f"the first difference shows {cells} as {key}, the records say {first[key]}")
    heads = page.run("[...document.querySelectorAll('.map th')].map(th => th.textContent)")
    claim(heads == ["tensor", "rank 0", "rank 1", "rank 2", "rank 3"], f"the columns of a diff are {heads}")
    shown_rows = page.run("""[...document.querySelectorAll('.map tbody tr')].map(row => [...row.cells].slice(1).map(cell =>
        [cell.querySelector('.cell').title, cell.querySelector('.sum')?.textContent ?? ''].join(' ').trim()).join(' '))""")
    claim(shown_rows == [r["held"] for r in taps if r["held"]], "the rows of a diff are not those of the records")
    claim(any("columns" in row for row in shown_rows) and any("partial" in row for row in shown_rows), "no part of a value is shown")
    mark = page.run("document.querySelector('#first-finding .mark').textContent")
    claim(first["called"] in mark, f"the first finding is marked {mark}")
    shares = page.run("""[...document.querySelectorAll('.taps tbody tr')].map(row => [row.dataset.tap, row.querySelector('.share')?.textContent ?? ''])""")
    for tap, share in shares:
        record = next(r for r in taps if "/".join(filter(None, (r["step"], r["tap"]))) == tap)
        if not record["allowed"]:
            continue
        percent = 100 * record["observed"] / record["allowed"]
        said = float(share.removeprefix("< ").removesuffix(" %"))
        claim(abs(said - percent) <= (1 if percent >= 10 else 0.06), f"{tap}: {share} of the limit, the records say {percent} %")


def check_lost_rank(page) -> None:
    """Of a dump without the file of rank 2, that comes first, and no other rank has its column."""
    page.run("location.hash = '#/'")
    page.wait_for("document.querySelector('.cases') !== null")
    link = "[...document.querySelectorAll('.cases tbody tr')].find(row => row.textContent.includes('rank 2: missing')).querySelector('a')"
    page.run(f"{link}.click()")
    page.wait_for("document.querySelector('.cause') !== null")
    cause = page.run("document.querySelector('.cause').textContent")
    claim("rank 2: missing; no file has this rank of 4" in cause, f"the first problem of a dump without rank 2 is {cause}")
    heads = page.run("[...document.querySelectorAll('.map th')].map(th => th.textContent)")
    claim(heads == ["tensor", "rank 0", "rank 1", "rank 3"], f"the columns of a dump without rank 2 are {heads}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenview", required=True)
    parser.add_argument("--source", required=True, type=pathlib.Path)
    parser.add_argument("--pictures", type=pathlib.Path)
    arguments = parser.parse_args()
    program = browser.find()
    if program is None:
        print("skipped: no browser (Debian: chromium) is installed")
        return 77
    golden = str(arguments.source / "data/golden/qwen3_next_tiny.h5")
    commands = {
        "matrix": (0, ["check", "--matrix=quick", "-v", golden, "--tp", "1,2"]),
        "run": (1, "run --protocol B --tp 4 --ep --tokens 10 --draft-steps 1 --numeric".split()),
        "repro": (1, ["repro", "vllm-48429", "--tp", "4", "--tokens", "10"]),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([arguments.tokenview, *"run --case prefill --protocol B --tp 4 --ep --draft-steps 1 --numeric".split(),
                        "--model", golden, "--dump", str(folder / "dump")], capture_output=True)
        dump = sorted(str(file) for file in (folder / "dump").glob("*.h5"))
        commands["diff"] = (1, ["diff", golden, *dump])
        commands["lost"] = (1, ["diff", golden, *dump[:2], *dump[3:]])
        for label, (code, command) in commands.items():
            with open(folder / f"{label}.jsonl", "w") as out:
                ended = subprocess.run([arguments.tokenview, *command, "--format", "jsonl"], stdout=out)
            claim(ended.returncode == code, f"{label}: exit {ended.returncode}, expected {code}")
        files = [folder / f"{label}.jsonl" for label in commands]
        page_file = folder / "report.html"
        report = subprocess.run([arguments.tokenview, "report", *map(str, files), "--html", str(page_file)], capture_output=True)
        claim(report.returncode == 1, f"report: exit {report.returncode}, expected 1")
        results = {label: records_of(file) for label, file in zip(commands, files)}
        url = page_file.as_uri()

        with browser.Browser(program) as page:
            page.screen(1280, 900)
            page.open(url, READY)
            check_overview(page, results)
            check_keys(page)
            single = [r["case"] for r in results["matrix"] if r["kind"] == "case" and "dp=1" in r["case"]]
            for case in (single[0], single[-1]):
                check_case(page, [r for r in results["matrix"] if r["case"] == case], case)
            check_case(page, results["run"], results["run"][-1]["case"])
            check_finding(page, results["run"], results["run"][-1]["case"])
            check_finding(page, results["repro"], results["repro"][-1]["case"])
            repair = page.run("document.querySelector('.repair').textContent")
            claim(results["repro"][-1]["repair"] in repair, "the repair is not shown")
            check_diff(page, results["diff"])
            check_lost_rank(page)

            names = {"overview": None, "run": results["run"][-1]["case"], "matrix": single[-1],
                     "diff": diff_name(results["diff"])}
            for label, (width, height, scheme, media) in {"light": (1280, 900, "light", ""), "dark": (1280, 900, "dark", ""),
                                                          "telephone": (360, 780, "light", ""), "print": (794, 1123, "dark", "print")}.items():
                for view, case in names.items():
                    page.screen(1280, 900)
                    page.open(url, READY)
                    if case:
                        open_case(page, case)
                    page.screen(width, height, scheme, media)
                    wide = page.run("document.documentElement.scrollWidth")
                    claim(wide <= width or media == "print", f"{view} is {wide} wide on a screen of {width}")
                    ground = page.run("getComputedStyle(document.body).backgroundColor")
                    claim((ground == "rgb(255, 255, 255)") == (label != "dark"), f"{view}: the ground is {ground} in {label}")
                    if arguments.pictures:
                        page.picture(arguments.pictures / f"{view}-{label}.png")
                        if case:
                            page.run("document.getElementById('first-finding')?.scrollIntoView({block: 'center'})")
                            page.picture(arguments.pictures / f"{view}-{label}-finding.png")
                            page.run("document.querySelector('.taps')?.scrollIntoView()")
                            page.picture(arguments.pictures / f"{view}-{label}-taps.png")
            claim(not page.errors, f"errors on the console: {page.errors[:3]}")
            elsewhere = [a for a in page.addresses if not a.startswith(("file:", "data:", "blob:", "about:"))]
            claim(not elsewhere, f"the page asks for {elsewhere[:3]}")
            claim(any(a.startswith("file:") for a in page.addresses), "no address was noted: the check of addresses checks nothing")

        with open(folder / "all.jsonl", "w") as out:
            subprocess.run([arguments.tokenview, "check", "--matrix", "-v", "--format", "jsonl"], stdout=out, cwd=arguments.source)
        subprocess.run([arguments.tokenview, "report", str(folder / "all.jsonl"), "--html", str(folder / "all.html")], capture_output=True)
        size = (folder / "all.html").stat().st_size
        claim(size <= MOST_BYTES, f"the page of the default matrix has {size} bytes, expected at most {MOST_BYTES}")
    print("\n".join(problems) or f"the page works; that of the default matrix has {size} bytes")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
