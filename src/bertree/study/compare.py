"""Compare two folders of a study: their figures side by side, with differences and standard errors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertree.errors import UserError
from bertree.result_table import ResultTable, ShownAsTable
from bertree.study.definition import Column
from bertree.study.results import ERRORS, Estimate, StudyResults, read_results


@dataclass(frozen=True, kw_only=True)
class FigureDifference:
    """A figure of two folders: second minus first."""

    cell: str
    column: Column
    first: Estimate
    second: Estimate

    @property
    def difference(self) -> float:
        """The second figure minus the first."""
        return self.second.value - self.first.value

    @property
    def error(self) -> float | None:
        """The standard error of the difference; None if one of them has a single seed."""
        squares = [estimate.squared_error for estimate in (self.first, self.second)]
        return None if squares[0] is None or squares[1] is None else math.sqrt(squares[0] + squares[1])

    @property
    def resolved(self) -> bool:
        """Whether the difference is larger than twice its standard error."""
        return self.error is not None and abs(self.difference) > ERRORS * self.error


@dataclass(frozen=True, kw_only=True, repr=False)
class StudyComparison(ShownAsTable):
    """Two folders of a study and the figures that both have."""

    first: StudyResults
    second: StudyResults
    differences: Sequence[FigureDifference]

    @property
    def table(self) -> str:
        """The figures as a table in Markdown."""
        lines = ["| cell | figure | first | second | difference |  |", "| --- | --- | --: | --: | --: | --- |"]
        return "\n".join(lines + [f"| {' | '.join(row)} |" for row in self._rows()])

    def _result_table(self) -> ResultTable:
        heads = ("cell", "figure", "first", "second", "difference", "")
        return ResultTable(f"{self.first.study.name}: two runs", self._rows(), heads)

    def _rows(self) -> list[tuple[str, ...]]:
        rows = []
        for row in self.differences:
            digits = row.column.digits
            figures = [f"{estimate.value:.{digits}f} ({estimate.seeds})" for estimate in (row.first, row.second)]
            error = "" if row.error is None else f" ± {row.error:.{digits + 1}f}"
            difference = f"{row.difference:+.{digits + 1}f}{error}"
            state = "differ" if row.resolved else "not resolved"
            label = row.column.label or row.column.name
            rows.append((row.cell, label, *figures, difference, state))
        return rows


def compare_studies(first: str | Path, second: str | Path) -> StudyComparison:
    """Compare two folders of a study: another size, other text, another machine. A difference is resolved if it is
    larger than twice its standard error over the seeds.

    >>> bertree.compare_studies("bert-size", "bert-size-wiki").differences[0].difference
    """
    results, others = read_results(first), read_results(second)
    columns = {column.name: column for column in others.study.columns}
    differences = []
    for cell in results.study.cells:
        if not any(cell.name == another.name for another in others.study.cells):
            continue
        for column in results.study.columns:
            if columns.get(column.name, column).figure != column.figure or column.name not in columns:
                continue
            figures = results.estimate(cell.name, column), others.estimate(cell.name, columns[column.name])
            if figures[0] is not None and figures[1] is not None:
                differences.append(FigureDifference(cell=cell.name, column=column, first=figures[0], second=figures[1]))
    if not differences:
        raise UserError(f"{first} and {second}: have no figure in common; give two folders of one study")
    return StudyComparison(first=results, second=others, differences=differences)
