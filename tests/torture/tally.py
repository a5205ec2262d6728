"""What was tried, and what went wrong."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Tally:
    """Counts tries; says which of them failed, and how."""

    what: str
    of: int = 0
    """How many there are in all, if that is known and only some are tried."""
    tried: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, case: object, problem: str | None) -> None:
        """Count a try, which had this problem or none."""
        self.tried += 1
        if problem is not None:
            self.failures.append(f"{self.what}, {case}: {problem}")

    @property
    def survived(self) -> int:
        return self.tried - len(self.failures)

    def check(self, at_least: int = 1) -> None:
        """Raise an AssertionError that lists the failures, or if fewer were tried than should be."""
        assert not self.failures, "\n".join(self.failures)
        assert self.tried >= at_least, f"{self.what}: only {self.tried} tried"
