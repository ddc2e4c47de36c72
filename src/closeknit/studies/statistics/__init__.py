"""Statistics of result rows: means, paired tests, published figures, and optimism.

Nothing here trains or loads a model. `in_words` says these numbers in sentences, and
`closeknit.studies.tables` writes them as tables.
"""

from closeknit.studies.statistics.lines import (
    SIZE_GROUPS,
    ConfidenceLine,
    Line,
    NearLine,
    Scored,
    size_group,
    standings,
    summarise,
)
from closeknit.studies.statistics.optimism import Optimism, optimism, trials_of_last_search
from closeknit.studies.statistics.overall import (
    LEAST_DATA_SETS,
    OverallGain,
    gains_over_data_sets,
    overall_gains,
)
from closeknit.studies.statistics.paired_tests import (
    SIGNIFICANCE,
    Difference,
    PairedRun,
    corrected_t_test,
    holm,
    row_values,
    seeds_and_rows_test,
)
from closeknit.studies.statistics.published import ACCURACY, F1, Figure, published, published_for

__all__ = [
    "ACCURACY",
    "F1",
    "LEAST_DATA_SETS",
    "SIGNIFICANCE",
    "SIZE_GROUPS",
    "ConfidenceLine",
    "Difference",
    "Figure",
    "Line",
    "NearLine",
    "Optimism",
    "OverallGain",
    "PairedRun",
    "Scored",
    "corrected_t_test",
    "gains_over_data_sets",
    "holm",
    "optimism",
    "overall_gains",
    "published",
    "published_for",
    "row_values",
    "seeds_and_rows_test",
    "size_group",
    "standings",
    "summarise",
    "trials_of_last_search",
]
