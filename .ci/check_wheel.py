"""Check the archives of a release: python .ci/check_wheel.py dist

The wheel is installed alone in a new virtual environment, which takes the dependencies from the
environment that runs this script. Every file of the package, data and templates included, must be
in the wheel and in the source archive.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "closeknit"
EXPECTED_KINDS = {".py", ".typed", ".html", ".css", ".js", ".toml", ".csv"}
ROOT_FILES = ("README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "tests/conftest.py")
COMMANDS = (["--version"], ["--help"], ["objectives"], ["data", "messages"])


def main(folder: Path) -> None:
    wheel = only_file(folder, "*.whl")
    archive = only_file(folder, "*.tar.gz")
    expected = package_files(PACKAGE)
    missing_kinds = EXPECTED_KINDS - {Path(name).suffix for name in expected}
    require(not missing_kinds, f"{PACKAGE} has no files of these kinds: {sorted(missing_kinds)}")
    check_archive(archive, expected)
    with tempfile.TemporaryDirectory() as temporary:
        environment = Path(temporary) / "environment"
        install(wheel, environment)
        check_installed(environment, expected)
        run_commands(environment, Path(temporary))
    print(
        f"{wheel.name} and {archive.name}: {len(expected)} files of the package, and the command runs"
    )


def only_file(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    require(
        len(found) == 1,
        f"{folder} must have one file {pattern}, and has {[path.name for path in found]}",
    )
    return found[0]


def package_files(package: Path) -> dict[str, bytes]:
    """The contents of all files of a package but for compiled ones, by their path in the
    package.
    """
    return {
        path.relative_to(package).as_posix(): path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }


def check_archive(archive: Path, expected: dict[str, bytes]) -> None:
    with tarfile.open(archive) as opened:
        names = set(opened.getnames())
    top = archive.name.removesuffix(".tar.gz")
    wanted = [f"src/closeknit/{name}" for name in expected]
    missing = [name for name in (*wanted, *ROOT_FILES) if f"{top}/{name}" not in names]
    require(not missing, f"{archive.name} lacks {missing}")


def install(wheel: Path, environment: Path) -> None:
    """Install the wheel without its dependencies; the new environment looks for those where this
    one has them.
    """
    venv.create(environment, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")]
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    subprocess.run([*pip, "install", *options, str(wheel)], check=True)
    dependencies = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    pointer = site_packages(environment) / "dependencies.pth"
    pointer.write_text("\n".join(sorted(dependencies)) + "\n", encoding="utf-8")


def site_packages(environment: Path) -> Path:
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(environment)}))


def check_installed(environment: Path, expected: dict[str, bytes]) -> None:
    installed = package_files(site_packages(environment) / "closeknit")
    missing = sorted(expected.keys() - installed.keys())
    require(not missing, f"the wheel lacks {missing}")
    surplus = sorted(installed.keys() - expected.keys())
    require(not surplus, f"the wheel has files that the source does not have: {surplus}")
    changed = [name for name, content in expected.items() if installed[name] != content]
    require(not changed, f"the wheel has other contents than the source: {changed}")


def run_commands(environment: Path, folder: Path) -> None:
    """Run the installed command outside the repository, so that only the installed files can be
    found.
    """
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    python = environment / "bin" / "python"
    located = run([python, "-c", "import closeknit; print(closeknit.__file__)"], folder, variables)
    inside = Path(located.strip()).is_relative_to(site_packages(environment))
    require(inside, f"the command would run {located.strip()}, not the installed package")
    for arguments in COMMANDS:
        printed = run([environment / "bin" / "closeknit", *arguments], folder, variables)
        require(bool(printed.strip()), f"closeknit {' '.join(arguments)} prints nothing")


def run(command: list[str | Path], folder: Path, variables: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    line = " ".join(map(str, command))
    require(done.returncode == 0, f"{line} ends with {done.returncode}:\n{done.stderr}")
    return done.stdout


def require(condition: bool, message: str) -> None:
    if not condition:
        sys.exit(message)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
