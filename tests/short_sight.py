"""Engines that know nothing of the prompts to come; a module of its own, because worker processes import it."""


def forget_the_future() -> None:
    from batchpaged.engine.future_uses import FutureUses
    from batchpaged.engine.room import Room

    FutureUses.kept = FutureUses.next_use, FutureUses.is_planned, Room.keep_all
    FutureUses.next_use, FutureUses.is_planned = lambda self, block: None, False
    Room.keep_all = lambda self, sequence: None


def know_the_future() -> None:
    from batchpaged.engine.future_uses import FutureUses
    from batchpaged.engine.room import Room

    FutureUses.next_use, FutureUses.is_planned, Room.keep_all = FutureUses.kept
    del FutureUses.kept
