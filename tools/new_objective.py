"""Start a new objective: python tools/new_objective.py NAME

Writes a working example that passes all checks, to be changed into the objective you want:

- src/closeknit/objectives/losses/NAME.py: the class with its formula, and the builder with its
  options
- a row in the table OBJECTIVES (src/closeknit/objectives/registry.py), and in the README's table
- a search space (spaces.toml) and a section in docs/objectives.md
- tests/objectives/test_NAME.py: an oracle in plain Python, a case worked by hand, gradcheck

docs/add-an-objective.md explains what to do next.
"""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEMPLATES = Path(__file__).resolve().parent / "templates"
PACKAGE = Path("src/closeknit/objectives")
LOSSES = PACKAGE / "losses"
LINE_LENGTH = 100

SECTION = """## `{name}`

    loss = mean over y_i = y_j   of  1 - <z_i, z_j>
         + mean over y_i != y_j  of  max(0, <z_i, z_j> - margin)

`{class_name}(*, margin=0.5)`, on pooled, over all pairs i < j of the batch; `ce_weight` 0.5. `margin` 0 to 1.

"""
README_ROW = "| `{name}` | pairs of one class brought to the same direction, others kept apart | pooled | |\n"
SPACE = """[default.{name}]
"train.lr" = [3e-5, 5e-5, 1e-4, 2e-4]
"train.epochs" = [5, 10, 20]
margin = [0.0, 0.25, 0.5, 0.75]
ce_weight = [0.1, 0.3, 0.5, 0.7, 0.9]

"""


class Refused(Exception):
    """A name that cannot be used, or a file that does not look as expected."""


def class_name_of(name: str) -> str:
    """The class of an objective: `my_loss` gives MyLoss."""
    return "".join(part.capitalize() for part in name.split("_"))


def check_name(root: Path, name: str) -> None:
    """Refuses a name that is not a Python name in lower case, or that is used already."""
    if (
        not name.isascii()
        or not name.isidentifier()
        or keyword.iskeyword(name)
        or name != name.lower()
    ):
        raise Refused(
            f"{name!r} cannot be used; write a Python name in lower case, like angular_margin"
        )
    class_name = class_name_of(name)
    if not class_name.isidentifier() or name.startswith("_"):
        raise Refused(f"{name!r} cannot be used; begin the name with a letter")
    for folder in (PACKAGE, LOSSES):
        if (root / folder / f"{name}.py").exists():
            raise Refused(f"{folder / name}.py exists already; choose another name")
    for path in (root / "tests").rglob(f"test_{name}.py"):
        raise Refused(f"{path.relative_to(root)} exists already; choose another name")
    for path in (root / PACKAGE).rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if f'"{name}": ' in source or re.search(rf"^class {class_name}\b", source, re.M):
            raise Refused(
                f"{path.relative_to(root)} has a {name} or {class_name} already; choose another name"
            )


def from_template(template: str, name: str) -> str:
    """The text of a template with the name of the new objective."""
    text = (TEMPLATES / f"{template}.template").read_text(encoding="utf-8")
    return text.replace("new_objective", name).replace("NewObjective", class_name_of(name))


def with_row(registry: str, name: str) -> str:
    """The source of registry.py with an import and a row for the objective."""
    class_name = class_name_of(name)
    new_import = f"from closeknit.objectives.losses.{name} import {class_name}, build_{name}\n"
    if len(new_import) > LINE_LENGTH + 1:
        new_import = f"from closeknit.objectives.losses.{name} import (\n    {class_name},\n    build_{name},\n)\n"
    imports = list(
        re.finditer(
            r"^from closeknit\.objectives\.losses\.(\w+) import (?:\([^)]*\)|[^\n]*)\n",
            registry,
            re.M,
        )
    )
    if not imports:
        raise Refused("registry.py has no imports of objectives")
    later = [one for one in imports if one.group(1) > name]
    place = later[0].start() if later else imports[-1].end()
    registry = registry[:place] + new_import + registry[place:]
    row = (
        f'    "{name}": with_cross_entropy("{name}", build_{name}, {class_name}, ce_weight=0.5),\n'
    )
    if len(row) > LINE_LENGTH + 1:
        arguments = f'        "{name}", build_{name}, {class_name}, ce_weight=0.5\n'
        if len(arguments) > LINE_LENGTH + 1:
            parts = (f'"{name}"', f"build_{name}", class_name, "ce_weight=0.5")
            arguments = "".join(f"        {part},\n" for part in parts)
        row = f'    "{name}": with_cross_entropy(\n{arguments}    ),\n'
    return inserted(registry, row, '    "joint": ', "registry.py")


def inserted(text: str, addition: str, before: str, where: str) -> str:
    """The text with an addition before the only line that starts with `before`."""
    places = [one.start() for one in re.finditer(f"^{re.escape(before)}", text, re.M)]
    if len(places) != 1:
        raise Refused(f"{where} has {len(places)} lines that start with {before!r}; expected one")
    return text[: places[0]] + addition + text[places[0] :]


def new_objective(root: Path, name: str) -> list[Path]:
    """Writes all files of a new objective below `root`, or none; gives their paths."""
    check_name(root, name)
    names = {"name": name, "class_name": class_name_of(name)}
    registry = root / PACKAGE / "registry.py"
    page = root / "docs" / "objectives.md"
    readme = root / "README.md"
    spaces = next(iter((root / "src").rglob("spaces.toml")), None)
    if spaces is None:
        raise Refused("there is no spaces.toml below src")
    texts = {
        root / LOSSES / f"{name}.py": from_template("new_objective.py", name),
        root / "tests" / "objectives" / f"test_{name}.py": from_template(
            "test_new_objective.py", name
        ),
        registry: with_row(registry.read_text(encoding="utf-8"), name),
        page: inserted(
            page.read_text(encoding="utf-8"),
            SECTION.format(**names),
            "## `joint`",
            "docs/objectives.md",
        ),
        readme: inserted(
            readme.read_text(encoding="utf-8"),
            README_ROW.format(**names),
            "| `joint` |",
            "README.md",
        ),
        spaces: inserted(
            spaces.read_text(encoding="utf-8"),
            SPACE.format(**names),
            "# The grid of ",
            "spaces.toml",
        ),
    }
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return [path.relative_to(root) for path in texts]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "name", metavar="NAME", help="a Python name in lower case, like angular_margin"
    )
    name = parser.parse_args().name
    try:
        paths = new_objective(ROOT, name)
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        sys.exit(2)
    for path in paths:
        print(path)
    print(f"\nThe example works: python -m pytest tests/objectives/test_{name}.py")
    print("Now write your formula into it; docs/add-an-objective.md says how.")


if __name__ == "__main__":
    main()
