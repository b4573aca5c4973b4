"""Changes the code in small ways, one at a time, and lists the changes that no test notices.

python -m scripts.mutation --seed 1 --mutants 200

`scripts.mutants` draws the changes. Each is made in a copy of the working tree, and only tests that run the changed
line are run there: the fastest first, for some seconds; then, for what has survived, all of them. A mutant is killed if
a test fails or does not end. A test that also fails without a change proves nothing, so all that killed are run once
more at the end. Which tests run a line comes from `make coverage`; test files that are new or changed since then are
measured first.

Results are written as they come, one JSON object a line. The next run with the same seed continues there; `--again`
runs what has survived once more, for instance after a test was added.
"""

import argparse
import ast
import json
import os
import py_compile
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.util import cache_from_source
from pathlib import Path
from typing import Literal

from coverage import CoverageData

from scripts.covering_tests import TestTimes, hash_of, read_times
from scripts.mutants import Mutant, draw_mutants

ROOT = Path(__file__).parent.parent
PACKAGES = tuple(f"src/holdfast/{name}" for name in ("core", "wire", "session", "apps/gateway"))
LEAST_KILLED = 0.9
FIRST_SECONDS = 12.0
"""How long the first tests of a mutant took when they were measured; coverage makes them about twice as slow."""
ALL_SECONDS = 240.0
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv", ".venvs", ".peers", "build", "dist", "__pycache__", ".coverage*", ".hypothesis", ".*_cache"
)
PYTEST = (
    *("-x", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist"),
    "--hypothesis-profile=same-examples",
)

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef

Outcome = Literal["killed", "survived", "uncovered"]


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a mutant."""

    mutant: Mutant
    outcome: Outcome
    test: str = ""
    """The test that failed, or why there is none."""
    tests: int = 0
    seconds: float = 0.0
    is_complete: bool = True
    """Whether every test that runs the line was run, as far as there is time for one mutant."""


class CoveringTests:
    """Which tests run which lines, as `make coverage` recorded it."""

    def __init__(self, root: Path, times: TestTimes, known: frozenset[str]) -> None:
        self._root = root
        self._times = times
        self._known = known
        self._data = CoverageData(str(root / ".coverage"))
        self._data.read()
        self._lines: dict[str, dict[int, frozenset[str]]] = {}

    def of_mutant(self, mutant: Mutant) -> list[str]:
        """Return the tests that run the changed statement, or that use what it defines; fastest first."""
        found = statement_at((self._root / mutant.path).read_text(), mutant.line)
        tests = self._of_lines((mutant.path, line) for line in found.lines)
        if found.is_definition or not tests:  # else only programs that tests start run it
            users = [place for name in found.names for place in self._mentions.get(name, ())]
            tests |= self._of_lines([*((mutant.path, line) for line in found.body), *users])
        return self._fastest_first(tests or self._of_file(mutant.path))

    def rest_of_file(self, mutant: Mutant, tests: Sequence[str]) -> list[str]:
        """Return the other tests that run anything in the changed file, fastest first.

        Before them come the tests of the whole package, directly in `tests`, which look at what modules define.
        """
        whole = {test for test in self._known if test.count("/") == 1 and self._times.seconds[test] < 1}
        left = self._of_file(mutant.path) - whole
        return [test for group in (whole, left) for test in self._fastest_first(group - set(tests))]

    def seconds(self, tests: Iterable[str]) -> float:
        """Return how long tests took when they were measured."""
        return sum(self._times.seconds[test] for test in tests)

    def within(self, tests: Sequence[str], seconds: float) -> list[str]:
        """Return the first tests that take this long together, and at least one."""
        chosen: list[str] = []
        for test in tests:
            seconds -= self._times.seconds[test]
            if chosen and seconds < 0:
                break
            chosen.append(test)
        return chosen

    def _of_lines(self, places: Iterable[tuple[str, int]]) -> frozenset[str]:
        return frozenset[str]().union(*(self._tests_by_line(path).get(line, ()) for path, line in places))

    def _of_file(self, path: str) -> frozenset[str]:
        return frozenset[str]().union(*self._tests_by_line(path).values())

    def _tests_by_line(self, path: str) -> dict[int, frozenset[str]]:
        if path not in self._lines:
            contexts = self._data.contexts_by_lineno(str(self._root / path))
            self._lines[path] = {line: self._known.intersection(tests) for line, tests in contexts.items()}
        return self._lines[path]

    def _fastest_first(self, tests: Iterable[str]) -> list[str]:
        return sorted(tests, key=lambda test: (self._times.seconds[test], test))

    @cached_property
    def _mentions(self) -> dict[str, list[tuple[str, int]]]:
        """Return where each name is used."""
        found: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for file in sorted((self._root / "src").rglob("*.py")):
            path = file.relative_to(self._root).as_posix()
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Name | ast.Attribute):
                    found[node.id if isinstance(node, ast.Name) else node.attr].append((path, node.lineno))
        return found


class Copy:
    """A copy of the working tree with an interpreter of its own, in which one file at a time is changed."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.tree = folder / "tree"
        shutil.copytree(root, self.tree, ignore=NOT_COPIED)
        venv.create(self.tree / ".venv", symlinks=True)
        binaries = self.tree / ".venv" / "bin"
        self.python = binaries / "python"
        # The packages of the running environment, but the copy's own code: also in each program that a test starts.
        site = next((self.tree / ".venv").glob("lib/python*/site-packages"))
        site.joinpath("copy.pth").write_text(f"{self.tree / 'src'}\n{sysconfig.get_path('purelib')}\n")
        program = binaries / "holdfast"
        program.write_text(f"#!{self.python}\nimport sys\nfrom holdfast.apps.cli.main import main\nsys.exit(main())\n")
        program.chmod(0o755)
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
        self._environment.pop("PYTHONPATH", None)
        self._environment["TMPDIR"] = str(folder / "tmp")
        folder.joinpath("tmp").mkdir()

    def collect(self) -> frozenset[str]:
        """Return the names of all tests; compiles every file on the way, which the runs do not do again."""
        environment = {**self._environment, "PYTHONDONTWRITEBYTECODE": ""}
        done = subprocess.run(
            [self.python, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider"],
            cwd=self.tree,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"The tests cannot be collected in a copy of this folder:\n{done.stdout}{done.stderr}")
        return frozenset(line for line in done.stdout.splitlines() if "::" in line)

    @contextmanager
    def mutated(self, mutant: Mutant) -> Generator[None]:
        """Make the change, and take it back."""
        path = self.tree / mutant.path
        source = path.read_text()
        compiled = Path(cache_from_source(str(path)))
        path.write_text(mutant.apply(source))
        compiled.unlink(missing_ok=True)
        try:
            yield
        finally:
            path.write_text(source)
            py_compile.compile(str(path), doraise=True)

    def failing_test(self, tests: Sequence[str], seconds: float, *options: str) -> list[str]:
        """Run tests for at most this much processor time; return those that failed, by default the first one only."""
        known = sorted(tests, reverse=True)  # of two names, one may be the beginning of the other
        # Processor time, so that a busy machine kills no mutant.
        limited = ["sh", "-c", f'ulimit -t {seconds:.0f}; exec "$@"', "sh"]
        command = [*limited, str(self.python), "-m", "pytest", *PYTEST, *options, *tests]
        environment = {**self._environment, "PYTHONDONTWRITEBYTECODE": "1"}
        with tempfile.TemporaryFile() as output:
            running = subprocess.Popen(
                command, cwd=self.tree, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            try:
                code = running.wait(60 + 10 * seconds)
            except subprocess.TimeoutExpired:
                return ["not ended: it waits without an end"]
            finally:
                _kill_group(running)
            output.seek(0)
            said = output.read().decode(errors="replace")
        named = [line.partition(" ")[2] for line in said.splitlines() if line[:6] in {"FAILED", "ERROR "}]
        failed = [next((test for test in known if name.startswith(test)), name[:200]) for name in named]
        if code in {-signal.SIGXCPU, -signal.SIGKILL}:
            return [f"not ended after {seconds:.0f} s of processor time"]
        if code and not failed:  # a conftest, or pytest itself, could not start
            return [said.strip().splitlines()[-1][:200] if said.strip() else f"pytest ended with {code}"]
        return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return whether too many mutants survived."""
    options = _parser().parse_args(arguments)
    path: Path = options.results or ROOT / "build" / "mutation" / f"seed-{options.seed}.jsonl"
    drawn = draw_mutants(ROOT, options.packages, options.seed, options.mutants)
    if not drawn:
        sys.exit(f"There is nothing to change in {' '.join(options.packages)}. Name files or folders below {ROOT}.")
    if options.list:
        print("\n\n".join(f"{mutant.path}:{mutant.line} {mutant.operator}\n{mutant.diff}" for mutant in drawn))
        return 0
    if not options.no_measuring:
        _measure_new_tests()
    elif not (ROOT / ".coverage").exists():
        sys.exit("No test was measured yet. Run `make coverage`, or leave out --no-measuring.")
    results = read_results(path)
    if options.again:
        results = {key: result for key, result in results.items() if result.outcome == "killed"}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder, path.open("a") as file:

        def keep(result: Result) -> None:
            results[result.mutant.key] = result
            file.write(json.dumps(asdict(result)) + "\n")
            file.flush()

        try:
            _run_all(drawn, Copy(ROOT, Path(folder)), results, keep)
        except KeyboardInterrupt:
            sys.exit(f"\nStopped. The results so far are in {path}; the same command continues from there.")
    of_draw = [results[mutant.key] for mutant in drawn]
    print("\n".join(render_summary(options.seed, of_draw)))
    return int(killed_share(of_draw) < LEAST_KILLED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.mutation", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="another seed draws other mutants (default: 1)")
    parser.add_argument("--mutants", type=int, default=200, help="how many are drawn (default: 200)")
    parser.add_argument("--again", action="store_true", help="run what has survived once more")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    parser.add_argument("--results", type=Path, help="where results are kept (default: build/mutation/seed-SEED.jsonl)")
    parser.add_argument("--no-measuring", action="store_true", help="leave out tests that were not measured")
    parser.add_argument(
        "packages",
        nargs="*",
        default=PACKAGES,
        help="files or folders to change (default: core, wire, session, gateway)",
    )
    return parser


def _measure_new_tests() -> None:
    """Measure the test files that `make coverage` has not seen, or not as they are now."""
    measured = read_times(ROOT).files if (ROOT / ".coverage").exists() else {}
    files = [file for file in sorted((ROOT / "tests").rglob("test_*.py")) if file.parent.name != "browser"]
    new = [str(file) for file in files if measured.get(file.relative_to(ROOT).as_posix()) != hash_of(file)]
    if not new:
        return
    print(f"measuring {len(new)} of {len(files)} test files", flush=True)
    coverage = [sys.executable, "-m", "coverage"]
    if subprocess.call([*coverage, "run", "-m", "pytest", "-p", "scripts.covering_tests", *new], cwd=ROOT):
        sys.exit("Tests fail without any change of the code. Repair them first.")
    subprocess.run([*coverage, "combine", "--append", "--quiet"], cwd=ROOT, check=True)


def _run_all(
    drawn: Sequence[Mutant], copy: Copy, results: Mapping[str, Result], keep: Callable[[Result], None]
) -> None:
    """Run the first tests of every mutant, then all tests of those that survived, then what killed without a mutant."""
    tests = CoveringTests(ROOT, times := read_times(ROOT), copy.collect().intersection(times.seconds))
    left = [mutant for mutant in drawn if mutant.key not in results]
    for number, mutant in enumerate(left, len(drawn) - len(left) + 1):
        result = _run_first(mutant, copy, tests)
        keep(result)
        print(f"[{number:>3}/{len(drawn)}] {_line(result)}", flush=True)
    for result in [results[mutant.key] for mutant in drawn]:
        if not result.is_complete:
            keep(done := _run_rest(result, copy, tests))
            print(f"[again] {_line(done)}", flush=True)
    for result in _killed_by_broken_tests([results[mutant.key] for mutant in drawn], copy):
        keep(replace(result, outcome="survived", test=f"{result.test} fails without the change too"))


def _run_first(mutant: Mutant, copy: Copy, tests: CoveringTests) -> Result:
    started = time.monotonic()
    covering = tests.of_mutant(mutant)
    if not covering:
        return Result(mutant, "uncovered", "no test runs anything in this file")
    first = tests.within(covering, FIRST_SECONDS)
    with copy.mutated(mutant):
        failed = copy.failing_test(first, 10 + 3 * tests.seconds(first))
    outcome: Outcome = "killed" if failed else "survived"
    seconds = round(time.monotonic() - started, 1)
    return Result(mutant, outcome, "".join(failed[:1]), len(first), seconds, is_complete=bool(failed))


def _run_rest(result: Result, copy: Copy, tests: CoveringTests) -> Result:
    """Run the tests that the first run left out: those of the line, then those of the file."""
    started = time.monotonic()
    covering = tests.of_mutant(result.mutant)
    rest = tests.within([*covering[result.tests :], *tests.rest_of_file(result.mutant, covering)], ALL_SECONDS)
    if not rest:
        return replace(result, is_complete=True)
    with copy.mutated(result.mutant):
        failed = copy.failing_test(rest, 30 + 3 * tests.seconds(rest))
    seconds = round(result.seconds + time.monotonic() - started, 1)
    outcome: Outcome = "killed" if failed else "survived"
    return Result(result.mutant, outcome, "".join(failed[:1]), result.tests + len(rest), seconds)


def _killed_by_broken_tests(results: Sequence[Result], copy: Copy) -> list[Result]:
    """Return the mutants that were killed by a test that fails without any change."""
    tests = sorted({result.test for result in results if result.outcome == "killed" and "::" in result.test})
    if not tests:
        return []
    broken = set(copy.failing_test(tests, 600, "--maxfail=1000"))
    return [result for result in results if result.outcome == "killed" and result.test in broken]


@dataclass(frozen=True, slots=True)
class Statement:
    """The innermost statement on a line: its own lines, those of its body, and the names that it defines.

    The lines of a loop, for instance, end before its body. A statement that defines no name has those of what is
    around it.
    """

    lines: range
    body: range
    names: tuple[str, ...]
    is_definition: bool = True
    """Whether it runs when the module is imported: in no function, or the head of one."""


def statement_at(source: str, line: int) -> Statement:
    """Return the innermost statement on a line."""
    found = Statement(range(line, line + 1), range(0), ())
    for node in ast.walk(ast.parse(source)):  # from the outside to the inside
        if not isinstance(node, ast.stmt | ast.ExceptHandler):
            continue
        last = node.end_lineno or node.lineno
        first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
        if first <= line <= last:
            body = getattr(node, "body", None)
            end = max(body[0].lineno - 1, node.lineno) if body else last
            lines = range(first, end + 1) if line <= end else range(line, line + 1)
            found = Statement(
                lines,
                body=range(end + 1, last + 1) if line <= end else range(0),
                names=_names(node) or found.names,
                is_definition=found.is_definition and not (line > end and isinstance(node, FUNCTIONS)),
            )
    return found


def _names(node: ast.AST) -> tuple[str, ...]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.Assign(targets=targets):
            return tuple(one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            return (name,)
        case _:
            return ()


def read_results(path: Path) -> dict[str, Result]:
    """Return the last result of each mutant in a file, by the mutant's key."""
    results: dict[str, Result] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        values = json.loads(line)
        result = Result(Mutant(**values.pop("mutant")), **values)
        results[result.mutant.key] = result
    return results


def killed_share(results: Sequence[Result]) -> float:
    """Return the share of mutants that tests noticed."""
    return sum(result.outcome == "killed" for result in results) / len(results) if results else 1.0


def render_summary(seed: int, results: Sequence[Result]) -> list[str]:
    """Return a table by package, and each survivor with its change."""
    lines = [f"{'package':<10} {'mutants':>7} {'killed':>7}"]
    for package in PACKAGES:
        own = [result for result in results if result.mutant.path.startswith(f"{package}/")]
        if own:
            lines.append(f"{package.rpartition('/')[2]:<10} {len(own):>7} {_share(own):>7}")
    lines.append(f"{'all':<10} {len(results):>7} {_share(results):>7}   (seed {seed})")
    for result in results:
        if result.outcome != "killed":
            lines += ["", _line(result), result.mutant.diff]
    return lines


def _share(results: Sequence[Result]) -> str:
    return f"{100 * killed_share(results):.1f} %"


def _line(result: Result) -> str:
    place = f"{result.mutant.path.removeprefix('src/holdfast/')}:{result.mutant.line}"
    return (
        f"{result.outcome:<9} {result.seconds:>5.1f} s {result.tests:>4} tests  {place}"
        f" {result.mutant.operator.rpartition('/')[2]}  {result.test}"
    ).rstrip()


def _kill_group(running: "subprocess.Popen[bytes]") -> None:
    """End pytest, if it still runs, and what its tests started."""
    with suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()


if __name__ == "__main__":
    sys.exit(main())
