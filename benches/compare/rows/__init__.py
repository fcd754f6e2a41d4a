"""Rows of the comparison. Every module in this package has a function `rows(stage)` that yields rows and tables."""
import statistics
from dataclasses import dataclass, field

BETTER = ('higher', 'lower')


class LeftOut(Exception):
    """A requirement of a row is missing on this machine. This is not a fault of the server or the comparison."""


@dataclass
class Row:
    """A piece of work that n5-server and another contestant do in turn.

    `ratio_samples` has one ratio per round. If `better` is 'higher', `target` is the least acceptable median of the
    ratios, otherwise the greatest. `ours` and `theirs` are the measurements in `unit`, one per round. `limit` describes
    a bound that was measured in the same run and shows that more is impossible; it is empty if there is none.
    """
    work: str
    against: str
    target: float
    better: str
    ratio_samples: list[float]
    ours: list[float]
    theirs: list[float]
    unit: str
    note: str = ''
    limit: str = ''

    def __post_init__(self):
        if self.better not in BETTER:
            raise ValueError(f'better is one of {BETTER}, not {self.better!r}')
        if not self.ratio_samples:
            raise ValueError(f'{self.work}: nothing was measured')

    @property
    def ratio(self):
        return statistics.median(self.ratio_samples)

    @property
    def verdict(self):
        met = self.ratio >= self.target if self.better == 'higher' else self.ratio <= self.target
        return 'met' if met else 'limit' if self.limit else 'missed'

    def cells(self):
        """Return the cells of the row as text, in the order of `HEADER`."""
        sign = '≥' if self.better == 'higher' else '≤'
        spread = f'{min(self.ratio_samples):.2f}..{max(self.ratio_samples):.2f}'
        notes = '; '.join(n for n in (self.note, self.limit and f'limit: {self.limit}') if n)
        return [self.work, self.against, number(self.ours), number(self.theirs), self.unit, f'{self.ratio:.2f}', spread,
                f'{sign} {self.target:g}', self.verdict, notes]


HEADER = ['work', 'against', 'ours', 'theirs', 'unit', 'ratio', 'min..max', 'target', 'verdict', 'note']


@dataclass
class Table:
    """A table of how a cost grows. `flat` is the verdict, and `rule` explains it; `lines` are below `header`."""
    title: str
    header: list[str]
    lines: list[list[str]] = field(default_factory=list)
    flat: bool = True
    rule: str = ''

    @property
    def verdict(self):
        return 'flat' if self.flat else 'not flat'


@dataclass
class Missing:
    """A row that was not measured, with the reason. A fault makes the whole comparison fail."""
    work: str
    why: str
    fault: bool = False

    @property
    def verdict(self):
        return 'FAULT' if self.fault else 'left out'


def against(work, contestant, target, better, ours, theirs, unit, note='', limit='', inverted=False):
    """Return a row from two lists of samples. The ratio is ours / theirs, or for times, `inverted`."""
    ratios = [b / a if inverted else a / b for a, b in zip(ours, theirs, strict=True)]
    return Row(work, contestant, target, better, ratios, ours, theirs, unit, note, limit)


def number(samples):
    """Return the median of the samples with about three significant digits."""
    value = statistics.median(samples)
    return f'{value:,.0f}' if abs(value) >= 100 else f'{value:.1f}' if abs(value) >= 10 else f'{value:.3g}'
