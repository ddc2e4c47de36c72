"""Settings are declared once: checks, TOML, documentation, editor schemas and stable keys follow.

A table of settings is a frozen dataclass, and each of its fields is declared with `setting`:

    @dataclass(frozen=True)
    class TrainConfig(SettingsTable, table="train"):
        epochs: int = setting(10, at_least=0, help="Passes over the training rows.")

A `Configuration` is a frozen dataclass whose fields are such tables: what one run file holds.
"""

from closeknit.settings.checks import check_type
from closeknit.settings.configuration import (
    Configuration,
    check_tables,
    differences,
    listed_tables,
    numbered,
    tables_of,
)
from closeknit.settings.schema import file_schema, json_schema, settings_markdown, table_schema
from closeknit.settings.table import (
    SettingsTable,
    check_values,
    not_a_table,
    setting,
    settings_of,
    unknown_setting,
)
from closeknit.settings.toml import (
    Changes,
    changed_tables,
    given_options,
    parse_changes,
    parse_value,
    read_toml,
    set_value,
    to_toml,
)

__all__ = [
    "Changes",
    "Configuration",
    "SettingsTable",
    "changed_tables",
    "check_tables",
    "check_type",
    "check_values",
    "differences",
    "file_schema",
    "given_options",
    "json_schema",
    "listed_tables",
    "not_a_table",
    "numbered",
    "parse_changes",
    "parse_value",
    "read_toml",
    "set_value",
    "setting",
    "settings_markdown",
    "settings_of",
    "table_schema",
    "tables_of",
    "to_toml",
    "unknown_setting",
]
