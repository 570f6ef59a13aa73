"""Workers to whom memory tiers seem to cost nothing, whatever is measured, and who preempt rows all the time; a module of its own,
because worker processes import it."""

import itertools


def make_free() -> None:
    from batchpaged.engine import tier_build
    from batchpaged.engine.scheduler import Scheduler
    from batchpaged.tiers.costs import TierCosts

    number = itertools.count()

    def schedule(self):
        if len(self.running) > 3 and next(number) % 3 == 2:
            self.preempt_last()
        return Scheduler.kept(self)

    tier_build.kept, tier_build.measure_costs = tier_build.measure_costs, lambda *given: TierCosts(1.0, 0.0, 0.0, 0.0)
    Scheduler.kept, Scheduler.schedule = Scheduler.schedule, schedule


def measure() -> None:
    from batchpaged.engine import tier_build
    from batchpaged.engine.scheduler import Scheduler

    tier_build.measure_costs, Scheduler.schedule = tier_build.kept, Scheduler.kept
    del tier_build.kept, Scheduler.kept
